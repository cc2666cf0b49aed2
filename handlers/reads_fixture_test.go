package handlers_test

import (
	"context"
	"maps"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/handlers/apierror"
	"taskapi/handlers/jobs"
)

// fakeMachine keeps metadata in memory, and measures nothing.
type fakeMachine struct {
	mu     sync.Mutex // guards values
	values map[string]string
}

func newMachine() *fakeMachine { return &fakeMachine{values: map[string]string{}} }

func (*fakeMachine) Node() *api.Node {
	return &api.Node{
		Attributes: map[string]string{"os.name": "debian", "unique.network.ip-address": "192.0.2.7"}, Status: "ready",
		SchedulingEligibility: "eligible", NodeResources: &api.NodeResources{Memory: api.NodeMemoryResources{MemoryMB: 64}},
	}
}

func (m *fakeMachine) Metadata() (map[string]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.values), nil
}

func (m *fakeMachine) SetMetadata(changes map[string]*string) (map[string]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(changes) == 0 {
		return nil, apierror.New(apierror.Invalid, "missing required Meta object")
	}
	for key, value := range changes {
		if value == nil {
			delete(m.values, key)
		} else {
			m.values[key] = *value
		}
	}
	return maps.Clone(m.values), nil
}

// fakeParser finds a job called parsed in every text.
type fakeParser struct{}

func (fakeParser) Parse(_ context.Context, text api.JobsParseRequest) (*api.Job, error) {
	if text.JobHCL == "bad" {
		return nil, apierror.New(apierror.Invalid, "job.hcl:1:1: not a job")
	}
	return &api.Job{ID: new("parsed"), Name: &text.Variables}, nil
}

func (fakeParser) Validate(_ context.Context, job *api.Job) (jobs.Validation, error) {
	if *job.ID == "bad" {
		return jobs.Validation{Errors: []string{"one", "three"}, Warnings: "two"}, nil
	}
	return jobs.Validation{}, nil
}

// fakeHistory is versions that each change one thing.
type fakeHistory []jobs.Version

// twoVersions returns the recorded job's version 0 as the present one, and a version 1, of whatever job, beside it.
func twoVersions() fakeHistory {
	version := func(number uint64, text string) jobs.Version {
		return jobs.Version{
			Job:        &api.Job{ID: new("demo"), Name: &text, Version: &number, JobModifyIndex: new(uint64)},
			Submission: &api.JobSubmission{Source: text, Format: "hcl2"},
		}
	}
	return fakeHistory{version(2, "latest"), version(1, "earlier")}
}

func (h fakeHistory) Versions() []jobs.Version { return h }

func (h fakeHistory) Compare(earlier, later *api.Job) []jobdiff.Change {
	return []jobdiff.Change{{Path: "name", InPlace: true, Text: *earlier.Name + " to " + *later.Name}}
}

package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

// running returns how many allocations of a job run, and whether each has a version of it that a function accepts.
func (a *machineAgent) running(client *api.Client, job string, accepts func(*api.Job) bool) (count int, all bool) {
	a.t.Helper()
	found := asked(client.Jobs().Allocations(job, true, nil))(a.t)
	all = true
	for _, stub := range found {
		if stub.ClientStatus != api.AllocClientStatusRunning {
			continue
		}
		count++
		alloc, _, err := client.Allocations().Info(stub.ID, nil)
		all = all && err == nil && accepts(alloc.Job)
	}
	return count, all
}

// TestAgentScales: another count starts and stops allocations of a group alone, and a revert reaches all of them.
func TestAgentScales(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	job := parsedJob(t, strings.Replace(pairJob, "count = 2", "count = 2\n scaling {\n min = 1\n max = 3\n }", 1))
	a.register(job)
	client := a.client()
	before := a.allocs("pair")
	scale := func(count int) {
		t.Helper()
		a.change(func() error {
			_, _, err := client.Jobs().Scale("pair", "g", &count, "", false, nil, nil)
			return err
		})
		until(t, a.taskapiProcess, "scales the job", func() bool {
			now, all := a.running(client, "pair", func(job *api.Job) bool { return *job.TaskGroups[0].Count == count })
			return now == count && all
		})
		status, _, err := client.Jobs().ScaleStatus("pair", nil)
		if err != nil || status.TaskGroups["g"].Desired != count || status.TaskGroups["g"].Running != count {
			t.Errorf("the scale of the job is %+v, %v", status, err)
		}
	}
	scale(3)
	for _, known := range before {
		if !strings.Contains(strings.Join(a.allocs("pair"), "\n"), known) {
			t.Errorf("%s does not run on", known)
		}
	}
	for count, group := range map[int]string{4: "g", -1: "g", 1: "none"} {
		_, _, err := client.Jobs().Scale("pair", group, &count, "", false, nil, nil)
		if answeredStatus(err) != http.StatusBadRequest {
			t.Errorf("%d of group %s: %v", count, group, err)
		}
	}
	if _, _, err := client.Jobs().Scale("other", "g", new(1), "", false, nil, nil); answeredStatus(err) != 404 {
		t.Errorf("a job that is not there: %v", err)
	}

	texts := map[string]uint64{}
	for _, text := range []string{"one", "two"} {
		job.TaskGroups[0].Count, job.Meta = new(3), map[string]string{"text": text}
		a.register(job)
		versions, _, _, err := client.Jobs().Versions("pair", false, nil)
		must.OK(t, err)
		texts[text] = *versions[0].Version
	}
	if _, _, err := client.Jobs().Revert("pair", 99, nil, nil, "", ""); answeredStatus(err) != 404 {
		t.Errorf("a revert to a version that is not there: %v", err)
	}
	if _, _, err := client.Jobs().Revert("pair", texts["two"], nil, nil, "", ""); answeredStatus(err) != 400 {
		t.Errorf("a revert to the present version: %v", err)
	}
	if _, _, err := client.Jobs().Revert("pair", texts["one"], new(uint64(99)), nil, "", ""); answeredStatus(err) != 409 {
		t.Errorf("a revert from another version: %v", err)
	}
	asked(client.Jobs().Revert("pair", texts["one"], nil, nil, "", ""))(t)
	until(t, a.taskapiProcess, "reverts all allocations", func() bool {
		now, all := a.running(client, "pair", func(job *api.Job) bool { return job.Meta["text"] == "one" })
		return now == 3 && all
	})
	scale(1)
	asked(client.Jobs().Deregister("pair", false, nil))(t)
	until(t, a.taskapiProcess, "stops the job", func() bool {
		now, _ := a.running(client, "pair", func(*api.Job) bool { return true })
		return now == 0
	})
	if _, _, err := client.Jobs().Scale("pair", "g", new(2), "", false, nil, nil); answeredStatus(err) != 409 {
		t.Errorf("a job that has stopped: %v", err)
	}
}

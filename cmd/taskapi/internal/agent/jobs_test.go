package agent

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/interfaces"
)

// versioned is a runner whose job has the version that a test gives it.
type versioned struct {
	interfaces.AllocRunner
	alloc api.Allocation
}

func (v *versioned) Alloc() *api.Allocation { return &v.alloc }

func (v *versioned) set(version uint64, priority int) {
	v.alloc.Job = &api.Job{ID: new("x"), Version: &version, Priority: &priority,
		TaskGroups: []*api.TaskGroup{{Name: new("g")}}}
}

// TestHistory keeps the latest versions, each with its own time and text, the present one first.
func TestHistory(t *testing.T) {
	runner := &versioned{alloc: api.Allocation{TaskGroup: "g", CreateTime: 42}}
	runner.set(0, 50)
	h := &history{runner: runner}
	if got := h.Versions(); len(got) != 1 || *got[0].Job.SubmitTime != 42 || got[0].Submission != nil {
		t.Fatalf("versions = %+v, want the first, which came with the allocation", got)
	}
	for version := uint64(1); version < 2*deployment.Kept; version++ {
		runner.set(version, 50+int(version))
		h.note(&api.JobSubmission{Source: string(rune('a' + version))})
		h.note(nil) // nothing new
	}
	got := h.Versions()
	if len(got) != deployment.Kept {
		t.Fatalf("%d versions are kept, want %d", len(got), deployment.Kept)
	}
	for i, v := range got {
		want := uint64(2*deployment.Kept - 1 - i)
		if *v.Job.Version != want || v.Submission.Source != string(rune('a'+want)) || *v.Job.SubmitTime <= 42 {
			t.Errorf("version %d = %d, %+v, submitted %d; want %d with its text",
				i, *v.Job.Version, v.Submission, *v.Job.SubmitTime, want)
		}
	}
	if runner.alloc.Job.SubmitTime != nil {
		t.Error("the allocation's own job was changed")
	}
	runner.alloc.Job.Stable = new(true)
	if now := h.Versions(); !*now[0].Job.Stable || *now[1].Job.Stable || *got[0].Job.Stable ||
		*now[0].Job.SubmitTime != *got[0].Job.SubmitTime {
		t.Errorf("stable: %v, %v, and as it was before: %v; want the present one alone",
			*now[0].Job.Stable, *now[1].Job.Stable, *got[0].Job.Stable)
	}
	changes := h.Compare(got[1].Job, got[0].Job)
	if len(changes) != 1 || changes[0].Path != "job > priority" {
		t.Errorf("changes = %+v, want the priority's", changes)
	}
}

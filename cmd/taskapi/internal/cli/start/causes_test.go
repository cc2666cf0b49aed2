package start

import (
	"errors"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli/base"
)

func TestCausesOfAnAllocationThatIsNotHealthy(t *testing.T) {
	terminated, failed := &api.TaskEvent{Type: api.TaskTerminated},
		&api.TaskEvent{Type: api.TaskDriverFailure, DisplayMessage: "no such\nprogram"}
	group := "g"
	alloc := &api.Allocation{
		ID: "215ef685-6b9e-3eaf-e74b-6b04f094ebca", TaskGroup: group,
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group,
			Tasks: []*api.Task{{Name: "a"}, {Name: "b"}, {Name: "c"}}}}},
		TaskStates: map[string]*api.TaskState{
			"a": {Events: []*api.TaskEvent{{Type: api.TaskStarted}, terminated, failed, {Type: api.TaskRestarting}}},
			"b": {Events: []*api.TaskEvent{failed, {Type: api.TaskRestarting}, {Type: api.TaskStarted}}},
		},
	}
	checks := api.AllocCheckStatuses{
		"1": {Check: "well", Service: "s", Status: "success"},
		"2": {Check: "ready", Service: "s", Status: "failure", Output: "not\nyet\n"},
	}
	want := "it is not\ntask \"a\" failed to start: no such program\nthe latest result of check \"ready\" of service " +
		"\"s\" is failure: not yet"
	if got := WithCauses((base.Layout{Dir: datadir.Dir(t.TempDir())}), alloc, checks,
		errors.New("it is not")).Error(); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}

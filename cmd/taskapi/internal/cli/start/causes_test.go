package start

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
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
		"3": {Check: `service: "s" check`, Service: "s", Status: "pending", Output: "none"},
	}
	want := "it is not\ntask \"a\" failed to start: no such program\nthe latest result of check \"ready\" of service " +
		"\"s\" is failure: not yet\nthe latest result of check `service: \"s\" check` of service \"s\" is pending: none"
	if got := WithCauses((base.Layout{Dir: datadir.Dir(t.TempDir())}), alloc, checks,
		errors.New("it is not")).Error(); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// TestWarnings: warnings are found among events and other lines, also after a long one.
func TestWarnings(t *testing.T) {
	const warning = "time=2026-11-27T05:22:42.177Z level=WARN msg=\"the store is away\"\n"
	log := "05:22:42.1  t           Killing           Template failed: " + strings.Repeat("x", 1<<20) + "\n" +
		strings.Replace(warning, "WARN", "INFO", 1) + warning + "                          ! " + warning
	var out strings.Builder
	must.OK(t, Warnings(strings.NewReader(log), &out))
	if out.String() != warning {
		t.Errorf("printed %.200q", out.String())
	}
}

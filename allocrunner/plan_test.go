package allocrunner_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
)

// versionOf returns an allocation of a job of one task, in a version that differs in place and by what needs new
// processes.
func versionOf(name, meta, env string) *api.Allocation {
	group := "g"
	return &api.Allocation{ID: "id", JobID: name, TaskGroup: group, Job: &api.Job{
		ID: &name, Meta: map[string]string{"m": meta},
		TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "t", Env: map[string]string{"E": env}}}}},
	}}
}

// TestPlan walks the table of Plan's comment.
func TestPlan(t *testing.T) {
	type wants struct {
		same, otherJob, inPlace, destructive string
	}
	both := func(s string) wants { return wants{s, s, s, s} }
	const (
		ended, stopping, other, needs    = "ended", "stopping", "other job", "needs new processes"
		unchanged, in, replace, recreate = "unchanged", "in place", "replace", "recreate"
	)
	states := []struct {
		name              string
		terminal, pending bool
		stop              *interfaces.StopRequest
		plain, forced     wants
	}{
		{"running", false, false, nil, wants{unchanged, other, in, needs}, wants{unchanged, other, in, replace}},
		{"stopping", false, false, &interfaces.StopRequest{}, wants{unchanged, other, stopping, stopping},
			wants{unchanged, other, replace, replace}},
		{"stopping for another version", false, false, &interfaces.StopRequest{ReplacedBy: new(api.Allocation)},
			wants{replace, other, replace, replace}, wants{replace, other, replace, replace}},
		{"terminal", true, false, nil, both(ended), both(recreate)},
		{"stopped", true, false, &interfaces.StopRequest{}, both(ended), both(recreate)},
		{"ended for another version", true, false, &interfaces.StopRequest{ReplacedBy: new(api.Allocation)}, both(recreate),
			both(recreate)},
		{"pending", false, true, nil, wants{unchanged, other, recreate, needs}, wants{unchanged, other, recreate, recreate}},
	}
	for _, s := range states {
		for _, force := range []bool{false, true} {
			want := s.plain
			if force {
				want = s.forced
			}
			for _, job := range []struct {
				name   string
				wanted *api.Allocation
				want   string
			}{
				{"the same job", versionOf("a", "1", "1"), want.same},
				{"another job", versionOf("b", "1", "1"), want.otherJob},
				{"changes in place", versionOf("a", "2", "1"), want.inPlace},
				{"destructive changes", versionOf("a", "2", "2"), want.destructive},
			} {
				is := versionOf("a", "1", "1")
				if s.stop != nil {
					s.stop.Apply(is)
				}
				decision, changes, err := allocrunner.Plan(allocrunner.Current{Alloc: is, Terminal: s.terminal, Pending: s.pending},
					job.wanted, force)
				what := fmt.Sprintf("%s, %s, force %v", s.name, job.name, force)
				if got := planned(decision, err); got != job.want {
					t.Errorf("%s: %s, want %s (%v)", what, got, job.want, err)
				}
				if len(changes) == 0 && (decision == allocrunner.InPlace || decision == allocrunner.Replace &&
					job.name != "the same job") {
					t.Errorf("%s: says nothing of what changes", what)
				}
				if err != nil && errors.Is(err, interfaces.ErrTerminal) != (job.want == ended || job.want == stopping) {
					t.Errorf("%s: %v is ErrTerminal: %v", what, err, errors.Is(err, interfaces.ErrTerminal))
				}
			}
		}
	}
}

// planned returns a decision or a refusal by name.
func planned(decision allocrunner.Decision, err error) string {
	switch {
	case err == nil:
		return map[allocrunner.Decision]string{allocrunner.Unchanged: "unchanged", allocrunner.InPlace: "in place",
			allocrunner.Replace: "replace", allocrunner.Recreate: "recreate"}[decision]
	case is[*allocrunner.EndedError](err):
		return "ended"
	case is[*allocrunner.StoppingError](err):
		return "stopping"
	case is[*allocrunner.OtherJobError](err):
		return "other job"
	case is[*interfaces.DestructiveError](err):
		return "needs new processes"
	}
	return err.Error()
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

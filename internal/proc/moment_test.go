package proc_test

import (
	"os/exec"
	"testing"

	"taskapi/internal/must"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

func TestMoment(t *testing.T) {
	before := proc.Now()
	if before.Space == "" || before.Forks == 0 {
		t.Fatalf("%+v", before)
	}
	must.OK(t, exec.Command("true").Run())
	now := proc.Now()
	if now.Forks <= before.Forks || before.Space != now.Space {
		t.Errorf("%+v after %+v", now, before)
	}
	for name, tc := range map[string]struct {
		then   proc.Moment
		reused bool
	}{
		"just before":              {before, false},
		"not counted":              {proc.Moment{Space: now.Space}, true},
		"later":                    {proc.Moment{Space: now.Space, Forks: now.Forks + 1000}, true},
		"another namespace":        {proc.Moment{Space: "pid:[1] 7", Forks: now.Forks}, true},
		"one that is unknown":      {proc.Moment{Forks: now.Forks}, true},
		"nothing is known of then": {proc.Moment{}, true},
	} {
		same.As(t, tc.reused, tc.then.Reused(now), name)
	}
	now.Forks = before.Forks + 1<<22 // more than there can be numbers
	if !before.Reused(now) {
		t.Error("the numbers have come round")
	}
}

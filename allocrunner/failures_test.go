package allocrunner_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/internal/same"
)

// TestFailuresAreReportedWithTheirCause: not with what was cleared away afterwards, nor with how a process ended that
// was found unhealthy.
func TestFailuresAreReportedWithTheirCause(t *testing.T) {
	t.Parallel()
	check := script("", `exit 2`)
	check.Name, check.CheckRestart = "never", &api.CheckRestart{Limit: 1, Grace: new(time.Millisecond)}
	for want, main := range map[string]*api.Task{
		`task "main": Exit Code: 3`: shell("main",
			`(trap "" INT TERM HUP; exec sleep 1000) & exit 3`),
		`task "main": healthcheck: check "never" unhealthy`: shell("main", "exec sleep 1000", func(t *api.Task) {
			t.Services = []*api.Service{service("", check)}
		}),
		`task "main": failed to parse config: `: shell("main", "${NOMAD_NOPE}"),
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			r := run(t, "batch", main)
			same.Says(t, allocrunner.ErrFailed, want, r.end())
		})
	}
}

// TestAnUnknownUserIsAFailedAttempt of the task that names it: what comes before it and what follows run all the same.
func TestAnUnknownUserIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	r := run(t, "batch", shell("init", "exit 0", lifecycle("prestart", false)), shell("other", "exec sleep 1000"),
		shell("main", "exit 0", func(t *api.Task) {
			t.User = "no-such-user"
			t.RestartPolicy = &api.RestartPolicy{Attempts: new(1)}
		}),
		shell("bye", "echo bye > local/bye", lifecycle("poststop", false)))
	const reason = `task "main": failed to identify user "no-such-user": unknown user no-such-user`
	if err := r.end(); !errors.Is(err, allocrunner.ErrFailed) || !strings.Contains(err.Error(), reason) {
		t.Fatalf("got %v, want ErrFailed with %s", err, reason)
	}
	r.wantEvents("main", "Received", "Task Setup", "Driver Failure", "Restarting", "Driver Failure", "Not Restarting")
	r.wantEvents("init", "Received", "Task Setup", "Started", "Terminated")
	if got := r.of("other"); !slices.Contains(got, "Sibling Task Failed") || slices.Contains(got, "Setup Failure") {
		t.Errorf("events of other: %v", got)
	}
	r.untilFile("bye/local/bye")
	if _, err := os.Stat(filepath.Join(r.dir, "main")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory, which could be nobody's: %v", err)
	}
}

// TestAMissingCommandIsSaidToBeTheChecks, not the task's, where it is a check's.
func TestAMissingCommandIsSaidToBeTheChecks(t *testing.T) {
	t.Parallel()
	check := script("", "")
	check.Command = "/no/such/check"
	r := run(t, "service", shell("main", "exec sleep 1000", func(t *api.Task) {
		t.Services = []*api.Service{service("", check)}
	}))
	const want = `nomad: program "/no/such/check" does not exist: install it, or correct the command`
	r.untilCheck("a failure that says whose command it is", func(c api.AllocCheckStatus) bool {
		return c.Status == "failure" && c.Output == want
	})
}

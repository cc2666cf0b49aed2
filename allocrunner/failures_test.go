package allocrunner_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
)

// TestFailuresAreToldWithWhatWentWrong: not with what was cleared away afterwards, nor with how a process ended that was found unhealthy.
func TestFailuresAreToldWithWhatWentWrong(t *testing.T) {
	t.Parallel()
	check := script("", `exit 2`)
	check.Name, check.CheckRestart = "never", &api.CheckRestart{Limit: 1, Grace: new(time.Millisecond)}
	for want, main := range map[string]*api.Task{
		`task "main": Exit Code: 3`:                         shell("main", `(trap "" INT TERM HUP; exec sleep 1000) & exit 3`),
		`task "main": healthcheck: check "never" unhealthy`: shell("main", "exec sleep 1000", func(t *api.Task) { t.Services = []*api.Service{service("", check)} }),
		`task "main": failed to parse config: `:             shell("main", "${NOMAD_NOPE}"),
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			r := run(t, "batch", main)
			if err := r.end(); !errors.Is(err, allocrunner.ErrFailed) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

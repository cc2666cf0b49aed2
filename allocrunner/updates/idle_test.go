package updates_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/updates"
)

// idleChild tells the test binary to be the idle process below.
const idleChild = "UPDATES_TEST_IDLE"

// TestIdleSetsNoTimer starts a process that waits for an idle Buffer in a bubble of synctest. When all goroutines wait
// and no timer is set, synctest reports a deadlock and ends the process. With a timer the bubble would go on for ever.
func TestIdleSetsNoTimer(t *testing.T) {
	if os.Getenv(idleChild) != "" {
		idle(t)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestIdleSetsNoTimer$")
	cmd.Env = append(os.Environ(), idleChild+"=1")
	out, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); !ended ||
		!strings.Contains(string(out), "all goroutines in bubble are blocked") {
		t.Errorf("the idle process: %v; it printed:\n%s", err, out)
	}
}

// idle never returns. It waits for Run when the Buffer has delivered everything, after a failure, too.
func idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newRecorder("s")
		sink.fails = 1
		b := updates.New(updates.Config{Sinks: []interfaces.Sink{sink, newRecorder("other")},
			Logger: slog.New(slog.DiscardHandler)})
		b.AllocUpdated(version("a", 1, "running"))
		b.Run(context.Background())
	})
}

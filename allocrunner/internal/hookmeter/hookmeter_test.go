package hookmeter_test

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/hookmeter"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestCallsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m hookmeter.Meter
		logger := slog.New(slog.DiscardHandler)
		broken := errors.New("broken")
		must.OK(t, m.Call(logger, "b", "prerun", func() error { time.Sleep(time.Second); return nil }))
		if err := m.Call(logger, "b", "prerun", func() error { time.Sleep(2 * time.Second); return broken }); !errors.Is(err,
			broken) {
			t.Errorf("the hook's error became %v", err)
		}
		_ = m.Call(logger, "a", "stop", func() error { return nil })
		want := []interfaces.HookStat{
			{Hook: "a", Step: "stop", Calls: 1},
			{Hook: "b", Step: "prerun", Calls: 2, Errors: 1, Took: 3 * time.Second},
		}
		same.As(t, want, m.Stats())
	})
}

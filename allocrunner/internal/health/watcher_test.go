package health_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/internal/health"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watched is a watcher that runs, and what it has said.
type watched struct {
	*health.Watcher
	said chan string
	done chan struct{}
}

func watch(t *testing.T, ctx context.Context) watched {
	t.Helper()
	begun := time.Now()
	w := watched{said: make(chan string, 2), done: make(chan struct{})}
	w.Watcher = health.NewWatcher(policy(t, nil), func(s health.State) {
		w.said <- fmt.Sprintf("%v after %v: %s", s.Phase == health.Healthy, time.Since(begun), s.Reason)
	})
	go func() { defer close(w.done); w.Run(ctx) }()
	return w
}

func (w watched) expect(t *testing.T, want string) {
	t.Helper()
	<-w.done
	select {
	case got := <-w.said:
		if got != want {
			t.Errorf("said %q, want %q", got, want)
		}
	default:
		t.Errorf("said nothing, want %q", want)
	}
	if len(w.said) > 0 {
		t.Errorf("said more: %q", <-w.said)
	}
}

func TestWatcher(t *testing.T) {
	good := results("success", "success", "success")
	for name, c := range map[string]struct {
		observe func(w watched)
		want    string
	}{
		"healthy": {func(w watched) {
			w.Observe(health.Event{Tasks: tasks("main pending"), Checks: good})
			time.Sleep(3 * time.Second)
			w.Observe(health.Event{Tasks: tasks(), Checks: good})
		}, "true after 13s: healthy for 10s"},
		"a break": {func(w watched) {
			w.Observe(health.Event{Tasks: tasks(), Checks: good})
			time.Sleep(9 * time.Second)
			w.Observe(health.Event{Tasks: tasks(), Checks: results("failure", "", "")})
			w.Observe(health.Event{Tasks: tasks(), Checks: good}) // before Run has had a chance to look
		}, "true after 19s: healthy for 10s"},
		"a failure": {func(w watched) {
			time.Sleep(time.Second)
			w.Observe(health.Event{Tasks: tasks("main failed"), Checks: good})
		}, `false after 1s: task "main" has failed`},
		"nobody looks": {func(watched) {}, "false after 1m0s: not healthy within 1m0s: nothing is known of its tasks"},
		"never well": {func(w watched) {
			w.Observe(health.Event{Tasks: tasks("main pending"), Checks: good})
		}, `false after 1m0s: not healthy within 1m0s: task "main" is pending`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, t.Context())
				c.observe(w)
				w.expect(t, c.want)
				w.Observe(health.Event{Tasks: tasks("main failed"), Checks: nil}) // too late, and harmless
			})
		})
	}
}

func TestWatcherEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := watch(t, ctx)
		w.Observe(health.Event{Tasks: tasks(), Checks: api.AllocCheckStatuses{}})
		cancel()
		<-w.done
		if len(w.said) > 0 {
			t.Errorf("said %q", <-w.said)
		}
	})
}

func TestWatcherPassesOnWhatIsDecidedWhenItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w := watch(t, ctx)
		<-w.done
		if len(w.said) > 0 {
			t.Errorf("said %q of what nobody has observed", <-w.said)
		}
		late := watch(t, t.Context())
		late.Observe(health.Event{Tasks: tasks("main failed"), Checks: nil})
		<-late.done
		same.As(t, 1, len(late.said), "what was decided is not said")
	})
}

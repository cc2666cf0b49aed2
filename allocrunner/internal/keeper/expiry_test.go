package keeper_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/boottime"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// soon is a time that a test waits for.
const soon = 200 * time.Millisecond

// pass waits until the machine's clock shows a time.
func pass(end time.Duration) {
	for boottime.Now() < end {
		unix.Poll(nil, 2)
	}
}

// TestTasksExpire: at the end of their time the tasks and their children are killed, no other starts, and a later end
// lets them start again in the same keeper.
func TestTasksExpire(t *testing.T) {
	b := begin(t, t.TempDir())
	must.OK(t, b.Expire(t.Context(), boottime.Now()+soon))
	gone(t, b.task)
	gone(t, b.child)
	if exit, err := b.Wait(t.Context(), "t"); err != nil || exit.Signal != 9 || !strings.Contains(exit.Killed, "claim") {
		t.Errorf("the task has ended with %+v, %v", exit, err)
	}
	for _, try := range []func() error{
		func() error { _, err := b.Start(t.Context(), shell("/", "t", "true")); return err },
		func() error {
			_, err := b.Exec(t.Context(), drivers.ExecSpec{Spec: shell("/", "t", "true")})
			return err
		},
	} {
		same.Error(t, keeper.ErrExpired, try(), "after the end")
	}
	pass(boottime.Now() + 2*keeper.ExpiryGrace) // in which a keeper that has killed its tasks is not killed
	must.OK(t, b.Expire(t.Context(), boottime.Now()+time.Hour))
	if status := run(t, b.Client, shell("/", "t", "exec sleep 1000")); !identify(t, status.PID).Runs() {
		t.Error("no task starts after a later end was set")
	}
	same.Fails(t, b.Expire(t.Context(), 0), "the end was taken away")
}

// TestARenewedEnd: no task notices an end that was renewed in time.
func TestARenewedEnd(t *testing.T) {
	b := begin(t, t.TempDir())
	var end time.Duration
	for range 20 {
		end = boottime.Now() + time.Minute
		must.OK(t, b.Expire(t.Context(), end))
	}
	first := boottime.Now() + soon
	must.OK(t, errors.Join(b.Expire(t.Context(), first), b.Expire(t.Context(), end)))
	if boottime.Now() >= first {
		t.Skip("this machine was too slow to renew the end in time")
	}
	pass(first + 2*keeper.ExpiryGrace)
	if !b.task.Runs() || !b.child.Runs() || !b.Keeper().Runs() {
		t.Error("something was killed")
	}
}

// TestAFrozenKeeperExpires: the kernel ends a keeper that can't kill its tasks, and their root processes with it.
// What else they have started ends when somebody looks after the directory.
func TestAFrozenKeeperExpires(t *testing.T) {
	for name, freeze := range map[string]func(b begun) error{
		"stopped before its end": func(b begun) error { return unix.Kill(b.Keeper().PID, unix.SIGSTOP) },
		"with its task": func(b begun) error {
			return errors.Join(unix.Kill(b.Keeper().PID, unix.SIGSTOP), unix.Kill(b.task.PID, unix.SIGSTOP))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var dir string
			var b begun
			for in := soon; ; in *= 2 { // a busy machine may stop the keeper too late
				dir = t.TempDir()
				b = begin(t, dir)
				end := boottime.Now() + in
				must.OK(t, b.Expire(t.Context(), end))
				err := freeze(b)
				if boottime.Now() < end {
					must.OK(t, err)
					break
				}
				_ = unix.Kill(b.Keeper().PID, unix.SIGCONT) // unless it has ended
			}
			gone(t, b.Keeper())
			gone(t, b.task)
			must.Get(keeper.Sweep(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)}))(t)
			gone(t, b.child)
		})
	}
}

// tenure is one whose end a test sets.
type tenure struct {
	mu      sync.Mutex
	end     time.Duration
	changed chan struct{}
}

func (u *tenure) Until() (time.Duration, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.end, u.changed
}

func (u *tenure) set(end time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.end = end
	close(u.changed)
	u.changed = make(chan struct{})
}

// TestTenure: no task starts before its tenure has begun; renewals reach the keeper, also another keeper; and none
// starts after a loss.
func TestTenure(t *testing.T) {
	dir := t.TempDir()
	held := &tenure{changed: make(chan struct{})}
	s := must.Get(keeper.Supervise(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir), Tenure: held}, true))(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	type started struct {
		status drivers.ProcessStatus
		err    error
	}
	begin := func() chan started {
		result := make(chan started, 1)
		go func() {
			status, err := s.Start(t.Context(), shell(dir, "t", "exec sleep 1000"))
			result <- started{status, err}
		}()
		return result
	}
	waiting := begin()
	pass(boottime.Now() + soon)
	select {
	case r := <-waiting:
		t.Fatalf("a task started before the tenure: %+v", r)
	default:
	}
	held.set(boottime.Now() + 30*time.Second)
	first := <-waiting
	if first.err != nil {
		t.Fatal(first.err)
	}
	task := identify(t, first.status.PID)
	held.set(boottime.Now() + soon)
	gone(t, task) // the keeper has got the end
	must.Get(s.Wait(t.Context(), "t"))(t)
	waiting = begin()
	held.set(boottime.Now() + 30*time.Second)
	second := <-waiting
	if second.err != nil {
		t.Fatal(second.err)
	}
	task = identify(t, second.status.PID)
	must.OK(t, unix.Kill(s.Keeper().PID, unix.SIGKILL))
	gone(t, task)
	if _, err := s.Wait(t.Context(), "t"); err == nil {
		t.Fatal("the keeper is not known to be lost")
	}
	third := <-begin()
	if third.err != nil {
		t.Fatal(third.err)
	}
	task = identify(t, third.status.PID)
	held.set(boottime.Now() + soon)
	gone(t, task) // the other keeper has got the end
	held.set(-1)
	if r := <-begin(); !errors.Is(r.err, interfaces.ErrTenureLost) {
		t.Errorf("after the loss: %+v", r)
	}
}

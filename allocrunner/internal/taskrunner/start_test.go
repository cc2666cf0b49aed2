package taskrunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"taskapi/allocrunner/drivers"
)

// TestWhichFailedStartIsTheLast: a task is started again under its restart policy unless no start can ever succeed.
func TestWhichFailedStartIsTheLast(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		last bool
	}{
		"config":      {&drivers.ConfigError{Err: errors.New("command is missing")}, true},
		"driver":      {&drivers.StartError{Reason: "no mounts", Err: errors.ErrUnsupported}, true},
		"file system": {fmt.Errorf("start: %w", &drivers.StartError{Reason: "no", Err: syscall.ENOTSUP}), false},
		"kernel":      {&drivers.StartError{Reason: "no", Err: syscall.ENOSYS}, false},
		"program":     {&drivers.StartError{Reason: "not found", Err: syscall.ENOENT}, false},
		"busy":        {&drivers.StartError{Reason: "somebody writes it", Err: syscall.ETXTBSY}, false},
	} {
		if got := driverFailure(c.err); got.unrecoverable != c.last {
			t.Errorf("%s: it is the last start: %v, want %v", name, got.unrecoverable, c.last)
		}
	}
}

// unready is a starter without what drivers need. It says when it is waited for.
type unready struct {
	ready
	waits chan struct{}
	err   error // that the wait returns; nil waits for the end of the start
}

func (u unready) Await(ctx context.Context) error {
	close(u.waits)
	if u.err == nil {
		<-ctx.Done()
	}
	return cmp.Or(u.err, ctx.Err())
}

// TestStartWithoutWhatDriversNeed: a start waits for what drivers need. It can be given up meanwhile, and is the last
// one if there will be nothing. No process is started.
func TestStartWithoutWhatDriversNeed(t *testing.T) {
	for name, err := range map[string]error{"given up": nil, "never": errors.New("no keeper")} {
		t.Run(name, func(t *testing.T) {
			starter := unready{waits: make(chan struct{}), err: err}
			r := newRunner(t, starter, Config{})
			ctx, giveUp := context.WithCancel(t.Context())
			go func() {
				<-starter.waits
				giveUp()
			}()
			if err != nil {
				ctx = t.Context()
			}
			failed, ok := r.launch(ctx, t.Context()).(startFailed)
			if !ok || failed.unrecoverable != (err != nil) {
				t.Errorf("%T %+v", failed, failed)
			}
		})
	}
}

package start

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"taskapi/cmd/taskapi/internal/agent"
)

// CatchSignals returns a channel that gets, from now on, the signals that an agent acts on.
func CatchSignals() chan os.Signal {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1)
	return signals
}

// InterruptedError says that a signal to stop came before an allocation was started or changed.
type InterruptedError struct{ Signal os.Signal }

func (e *InterruptedError) Error() string {
	return e.Signal.String() + ": nothing was started or changed"
}

// Unwrap makes it the end of a wait, as that of a context.
func (e *InterruptedError) Unwrap() error { return context.Canceled }

// Each calls do with each signal, one after the other, until end is called. After end has returned, do is not called
// any more.
func Each(signals <-chan os.Signal, do func(syscall.Signal)) (end func()) {
	done := make(chan struct{})
	var calls sync.WaitGroup
	calls.Go(func() {
		for {
			select {
			case <-done:
				return
			case sig := <-signals:
				do(sig.(syscall.Signal)) // as on every Unix
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		calls.Wait()
	})
}

// Startup keeps the signals that arrive before an agent can handle them.
type Startup struct {
	signals chan os.Signal
	held    []os.Signal
	End     func() // stops keeping signals
}

// Watch starts to keep signals. The first SIGINT or SIGTERM ends the context of the steps that may be interrupted. A
// second one kills this process.
func Watch(ctx context.Context, signals chan os.Signal) (*Startup, context.Context) {
	s := &Startup{signals: signals}
	waiting, cancel := context.WithCancelCause(ctx)
	var first time.Time
	var kind syscall.Signal
	end := Each(signals, func(sig syscall.Signal) {
		switch {
		case sig == syscall.SIGUSR1:
		case kind == 0:
			first, kind = time.Now(), sig
			cancel(&InterruptedError{sig})
		case sig == kind && time.Since(first) < agent.SameStop:
			return
		default:
			signal.Reset(sig)
			_ = syscall.Kill(os.Getpid(), sig) // to ourselves
			return
		}
		s.held = append(s.held, sig)
	})
	s.End = func() {
		end()
		cancel(nil)
	}
	return s, waiting
}

// HandOver stops keeping signals, and returns their channel with the kept signals in it.
func (s *Startup) HandOver() chan os.Signal {
	s.End()
	for _, sig := range s.held {
		select {
		case s.signals <- sig:
		default: // it is full of signals that came since
		}
	}
	return s.signals
}

// Interruptible is a reader whose Read returns when a context ends. Data that it reads after that is lost; a Read that
// hangs ends with the process.
type Interruptible struct {
	Ctx  context.Context
	From io.Reader
}

func (r Interruptible) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	buf, done := make([]byte, len(p)), make(chan result, 1)
	go func() {
		n, err := r.From.Read(buf)
		done <- result{n, err}
	}()
	select {
	case got := <-done:
		return copy(p, buf[:got.n]), got.err
	case <-r.Ctx.Done():
		return 0, context.Cause(r.Ctx)
	}
}

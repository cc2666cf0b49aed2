package top

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	tea "charm.land/bubbletea/v2"
)

// work owns the goroutines in which a screen's commands run: bubbletea starts them, and does not wait for them.
type work struct {
	context context.Context // of all of them: a command begins long after the call that made it
	cancel  context.CancelFunc

	mu  sync.Mutex // held so that nothing begins after the context has ended
	all sync.WaitGroup
}

func newWork(ctx context.Context) *work {
	w := &work{}
	w.context, w.cancel = context.WithCancel(ctx)
	return w
}

// command returns a command that does something until it is done, or until the work is closed.
func (w *work) command(do func(ctx context.Context) tea.Msg) tea.Cmd {
	return func() (msg tea.Msg) {
		if !w.begin() {
			return nil
		}
		defer w.all.Done()
		defer func() {
			if r := recover(); r != nil {
				msg = panicMsg{fmt.Errorf("panic: %v\n%s", r, debug.Stack())}
			}
		}()
		return do(w.context)
	}
}

// panicMsg is a panic of a command: it ends the screen, and is printed when the terminal is restored.
type panicMsg struct{ err error }

func (w *work) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.context.Err() != nil {
		return false
	}
	w.all.Add(1)
	return true
}

// Close ends all commands and waits for them.
func (w *work) Close() {
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.all.Wait()
}

package templates

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/filewatch"
	"taskapi/internal/wake"
)

// Watch waits for changes of the shared store for all templates of an allocation. It watches while one of them needs
// it.
type Watch struct {
	store  cluster.Store // nil for none: nothing changes then
	logger *slog.Logger
	files  filewatch.Watcher
	turns  chan struct{} // held while a process renders

	mu    sync.Mutex // guards the fields below
	tasks map[*manager]struct{}
	end   context.CancelFunc // ends the goroutine; nil while none runs
	done  chan struct{}
}

// NewWatch returns the watch of an allocation's templates.
func NewWatch(store cluster.Store, logger *slog.Logger) *Watch {
	return &Watch{store: store, logger: logger, tasks: map[*manager]struct{}{}, turns: make(chan struct{}, 2)}
}

// turn waits until a process may be started to render: each may take half a gigabyte.
func (w *Watch) turn(ctx context.Context) (done func(), err error) {
	select {
	case w.turns <- struct{}{}:
		return func() { <-w.turns }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// add begins to report changes to a manager: all that happen after its return.
func (w *Watch) add(ctx context.Context, m *manager) error {
	if w.store == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		page, err := w.store.List(ctx, cluster.Span{Prefix: "\x00", Limit: 1}) // for its index
		if err != nil {
			return err
		}
		ctx, end := context.WithCancel(context.Background())
		done := make(chan struct{})
		w.end, w.done = end, done
		go func() {
			defer close(done)
			w.run(ctx, page.Index)
		}()
	}
	w.tasks[m] = struct{}{}
	return nil
}

// remove ends that. It waits for the goroutine if it was the last.
func (w *Watch) remove(m *manager) {
	w.mu.Lock()
	delete(w.tasks, m)
	end, done := w.end, w.done
	if len(w.tasks) > 0 || end == nil {
		w.mu.Unlock()
		return
	}
	w.end = nil
	w.mu.Unlock()
	end()
	<-done
}

// retryPause is the time between two attempts to read the store.
const retryPause = time.Second

// run reports changes until ctx ends.
func (w *Watch) run(ctx context.Context, index uint64) {
	for warned := false; ctx.Err() == nil; {
		changes, err := w.store.Watch(ctx, "", index)
		if err != nil {
			if !warned && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
				w.logger.Warn("templates may be out of date until the shared store can be read again", "error", err)
				warned = true
			}
			_ = wake.Sleep(ctx, retryPause)
			continue
		}
		warned, index = false, changes.Index
		w.mu.Lock()
		for m := range w.tasks {
			m.changed(changes)
		}
		w.mu.Unlock()
	}
}

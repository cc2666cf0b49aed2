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

// Watch waits for changes of the shared store for all templates of an allocation. It watches only keys that a template
// reads.
type Watch struct {
	store  cluster.Store // nil for none: nothing changes then
	logger *slog.Logger
	files  filewatch.Watcher
	turns  chan struct{} // held while a process renders

	mu       sync.Mutex // guards the fields below
	tasks    map[*manager]struct{}
	prefixes map[string]bool // of keys: a goroutine watches each until end
	ctx      context.Context
	end      context.CancelFunc
	running  *sync.WaitGroup
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

// add begins to report changes to a manager. A change of a prefix is reported if it happens after follow has returned.
func (w *Watch) add(m *manager) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tasks) == 0 {
		w.ctx, w.end = context.WithCancel(context.Background())
		w.prefixes, w.running = map[string]bool{}, new(sync.WaitGroup)
	}
	w.tasks[m] = struct{}{}
}

// follow begins to watch the keys with a prefix, unless they are watched already. A manager must have been added before
// it calls follow.
func (w *Watch) follow(ctx context.Context, prefix string) error {
	if w.store == nil {
		return nil
	}
	w.mu.Lock()
	followed := w.prefixes[prefix]
	w.mu.Unlock()
	if followed {
		return nil
	}
	// The store may answer late, and other tasks must not wait for its answer when they start and end.
	page, err := w.store.List(ctx, cluster.Span{Prefix: prefix, Limit: 1}) // for its index
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || w.prefixes[prefix] {
		return err
	}
	w.prefixes[prefix] = true
	watching := w.ctx
	w.running.Go(func() { w.run(watching, prefix, page.Index) })
	return nil
}

// remove ends the reports to a manager. After the last manager, it ends the goroutines and waits for them.
func (w *Watch) remove(m *manager) {
	w.mu.Lock()
	delete(w.tasks, m)
	last, end, running := len(w.tasks) == 0, w.end, w.running
	w.mu.Unlock()
	if last {
		end()
		running.Wait()
	}
}

// retryPause is the time between two attempts to read the store.
const retryPause = time.Second

// run reports changes of keys with a prefix until ctx ends.
func (w *Watch) run(ctx context.Context, prefix string, index uint64) {
	for warned := false; ctx.Err() == nil; {
		changes, err := w.store.Watch(ctx, prefix, index)
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

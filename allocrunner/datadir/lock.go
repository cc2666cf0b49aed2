package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/state"
	"taskapi/internal/safedir"
)

// Lock is an allocation's directory, which this process alone holds, with the state that an earlier process saved
// there.
type Lock struct {
	ID  string
	Dir string // the allocation directory

	there   bool // see LockExisting
	logger  *slog.Logger
	saved   *interfaces.Saved
	before  *interfaces.Saved // the allocation that Recreate has replaced; nil for none
	life    string
	state   interfaces.OwnedState // nil when the state can't be written
	release func() error
	removed bool     // the allocation has begun, and its state was removed
	unused  bool     // see Unused
	name    *os.File // the lock on the allocation's name; nil for none
}

// acquireTries bounds how often a directory that another process removes is made again. A state that is a link to
// nowhere is missing each time.
const acquireTries = 10

// Lock locks an allocation's directory, by owning its state in the store, and makes it when it is missing. Errors:
// state.ErrInUse when another process has it; *StateMissingError; allocrunner.CheckCopy's; those of a state that can't
// be read.
func (d Dir) Lock(id string, store interfaces.Store, logger *slog.Logger) (*Lock, error) {
	return d.lock(&Lock{ID: id, Dir: d.Alloc(id), logger: logger}, store)
}

// LockExisting is Lock for an allocation that must be there already: LockExisting does not make its directory. Errors:
// *RemovedError if another process has removed the allocation.
func (d Dir) LockExisting(id string, store interfaces.Store, logger *slog.Logger) (*Lock, error) {
	return d.lock(&Lock{ID: id, Dir: d.Alloc(id), logger: logger, there: true}, store)
}

// LockNew is Lock for an ID that this process has drawn at random and given to nobody yet. No process of an earlier
// life can exist, so LockNew looks for none. A new directory would not prove that, since an earlier directory of the
// same ID may have been removed while its tasks ran.
func (d Dir) LockNew(id string, store interfaces.Store, logger *slog.Logger) (*Lock, error) {
	return d.lock(&Lock{ID: id, Dir: d.Alloc(id), logger: logger, unused: true}, store)
}

func (d Dir) lock(l *Lock, store interfaces.Store) (*Lock, error) {
	id := l.ID
	err := allocrunner.CheckCopy(l.Dir)
	if err != nil {
		return nil, err
	}
	err = l.acquire(d.State(id), store)
	// When another process has just removed the directory, it is made again, or LockExisting fails.
	for tries := 1; tries < acquireTries && errors.Is(err, fs.ErrNotExist); tries++ {
		err = l.acquire(d.State(id), store)
	}
	if err != nil {
		return nil, damaged(id, err)
	}
	allocdir.RemoveUnfinished(l.Dir)
	l.saved, err = l.state.Load()
	if err == nil {
		err = own(id, l.saved)
	}
	if errors.Is(err, state.ErrNotFound) {
		err = nil
		if !l.unused {
			var running bool
			if running, l.unused = allocrunner.Search(l.Dir); running {
				err = &StateMissingError{id}
			}
		}
	}
	if err != nil {
		return nil, errors.Join(damaged(id, err), l.Close())
	}
	l.life = uuid.NewString()
	if l.saved != nil && l.saved.Life != "" {
		l.life = l.saved.Life
	}
	return l, nil
}

// acquire takes ownership of the state.
func (l *Lock) acquire(path string, store interfaces.Store) error {
	if l.there {
		if _, err := os.Stat(l.Dir); errors.Is(err, fs.ErrNotExist) {
			return &RemovedError{l.ID}
		}
	} else if err := safedir.MakePassable(l.Dir); err != nil {
		return fmt.Errorf("allocation directory %s can't be made: %w", l.Dir, withoutPath(err))
	}
	if _, err := trust(l.Dir); err != nil {
		return err
	}
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		_, err := os.Lstat(filepath.Join(l.Dir, "alloc")) // an allocation that has begun has it
		l.removed = err == nil
	}
	var err error
	if l.state, err = store.Acquire(l.ID); err != nil {
		_ = os.Remove(l.Dir) // if it is empty, as it was made above
	}
	return err
}

// LockReadOnly locks an allocation as Lock does, if the state can't be written. No change is saved then.
func (d Dir) LockReadOnly(id string, logger *slog.Logger) (*Lock, error) {
	l := &Lock{ID: id, Dir: d.Alloc(id), logger: logger}
	err := allocrunner.CheckCopy(l.Dir)
	if err != nil {
		return nil, err
	}
	if l.saved, l.release, err = state.Hold(d.State(id)); err != nil {
		return nil, damaged(id, err)
	}
	return l, nil
}

// Close lets others lock the allocation.
func (l *Lock) Close() error {
	l.releaseName()
	if l.state == nil {
		return l.release()
	}
	return l.state.Close()
}

// Saved returns the state that was saved when the lock was taken, nil if the allocation has not begun.
func (l *Lock) Saved() *interfaces.Saved { return l.saved }

// Previous returns the saved allocation that Recreate has replaced, or nil.
func (l *Lock) Previous() *interfaces.Saved { return l.before }

// Life returns the ID of the allocation's present life.
func (l *Lock) Life() string { return l.life }

// ReadOnly reports whether the state can't be written.
func (l *Lock) ReadOnly() bool { return l.state == nil }

// Removed reports whether the allocation has begun, and its state was removed.
func (l *Lock) Removed() bool { return l.removed }

// Unused reports whether nothing of the allocation runs: it has not begun, and LockNew took the lock, or Lock found no
// process of an earlier life.
func (l *Lock) Unused() bool { return l.unused && l.saved == nil && !l.removed }

// State returns the store for a runner of the allocation, nil if it can't be written.
func (l *Lock) State() interfaces.State {
	if l.name == nil || l.state == nil {
		return l.state
	}
	return savedState{l.state, l}
}

// Reload reads the saved state again.
func (l *Lock) Reload() error {
	if l.state == nil {
		return nil
	}
	var err error
	l.saved, err = l.state.Load()
	return err
}

// Discard removes the directory of an allocation that has not begun. An allocation that has a directory of a task may
// have begun.
func (l *Lock) Discard() error {
	if !l.Unused() || l.state == nil {
		return nil
	}
	if _, err := l.state.Load(); !errors.Is(err, state.ErrNotFound) {
		return nil // it may have begun
	}
	entries, err := os.ReadDir(l.Dir)
	if err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() && e.Name() != "alloc" }) {
		return err
	}
	return allocdir.Remove(l.Dir)
}

// Destroy removes an ended allocation, after the destroy hooks, or an allocation without a saved state. Another one can
// begin in its place at once. Errors: interfaces.ErrNotTerminal.
func (l *Lock) Destroy(ctx context.Context, hooks ...interfaces.RunnerHook) error {
	if l.saved == nil { // it has no tasks
		return allocdir.Remove(l.Dir)
	}
	runner, err := allocrunner.New(interfaces.Config{Alloc: l.saved.Alloc, Dir: l.Dir, Logger: l.logger,
		State: l.State(), Saved: l.saved, Hooks: hooks})
	if err != nil {
		return fmt.Errorf("allocation %s: %w", l.ID, err)
	}
	return runner.Destroy(ctx)
}

// TryRecreate returns the error that Recreate would return now.
func (l *Lock) TryRecreate() error {
	if s, ok := l.state.(interface{ TryRecreate() error }); ok { // a store need not know in advance
		return s.TryRecreate()
	}
	return nil
}

// Recreate forgets the saved state, and has the allocation begin again as next, under the same ID. Its directories
// stay. This process keeps the lock throughout; if it is killed, the next one resumes with next. Tasks of a replaced
// allocation that an operator has stopped stay stopped, unless next is fresh. Errors: *InvalidError.
func (l *Lock) Recreate(next *api.Allocation, fresh bool) error {
	previous, err := l.state.Load()
	if err != nil {
		previous = nil // also a damaged state is replaced
	}
	if previous != nil {
		previous.Tasks = overrides(previous, next, fresh)
	}
	first, err := allocrunner.New(interfaces.Config{Alloc: next, Previous: previous, Dir: l.Dir, Logger: l.logger})
	if err != nil {
		return &InvalidError{err}
	}
	life := uuid.NewString()
	change := interfaces.Saved{Alloc: first.Alloc(), Deployments: first.Deployments(), Life: life}
	if previous != nil {
		change.Tasks = previous.Tasks
	}
	if err := l.state.Recreate(change); err != nil {
		return fmt.Errorf("the state of the allocation that ended can't be replaced: %w", err)
	}
	l.saved, l.before, l.life, l.unused = nil, previous, life, false
	return nil
}

// overrides returns what holds for tasks of next because an operator has stopped or started them before.
func overrides(previous *interfaces.Saved, next *api.Allocation, fresh bool) map[string]interfaces.SavedTask {
	kept := map[string]interfaces.SavedTask{}
	if group := next.GetTaskGroup(); group != nil && !fresh && interfaces.Replaced(previous.Alloc) {
		for _, t := range group.Tasks {
			was := previous.Tasks[t.Name].Override
			if was != interfaces.ScheduleRun && lifecycle.Of(t).Hook != lifecycle.Poststop {
				kept[t.Name] = interfaces.SavedTask{Override: was}
			}
		}
	}
	return kept
}

// FinishReplacement saves that no other version of the job follows an ended allocation any more.
func (l *Lock) FinishReplacement() error {
	if l.state == nil {
		return nil
	}
	saved, err := l.state.Load()
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	if err != nil || !saved.Terminal || !interfaces.Replaced(saved.Alloc) {
		return err
	}
	interfaces.StopRequest{}.Apply(saved.Alloc)
	saved.Alloc.ModifyIndex++
	deployments := deployment.State(saved.Deployments).Next(deployment.Changed{Alloc: saved.Alloc})
	return l.state.Put(interfaces.Saved{Alloc: saved.Alloc, Deployments: deployments})
}

package datadir

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/internal/slice"
	"taskapi/internal/wake"
)

// stickyPause is the pause between two attempts to lock an ended allocation, whose process is about to exit.
const stickyPause = 20 * time.Millisecond

// TakeSticky moves the sticky data of the latest ended allocation of alloc's name to the locked one, which has not
// begun. The allocation is saved first, so a process that resumes it after a kill continues the move. Until the one
// step that moves everything, the ended allocation has the data. TakeSticky waits at most that long for another process
// to let go of the ended allocation.
func (d Dir) TakeSticky(
	ctx context.Context, l *Lock, alloc *api.Allocation, store interfaces.Store, most time.Duration,
) error {
	if l.state == nil || !interfaces.Sticky(alloc) || allocdir.Built(l.Dir) {
		return nil
	}
	for deadline := time.Now().Add(most); ; {
		from, err := d.latestEnded(alloc)
		if from == "" || err != nil {
			return err
		}
		old, err := d.LockExisting(from, store, l.logger)
		if err == nil && old.saved != nil && old.saved.Terminal && allocdir.HasSticky(old.Dir) {
			return errors.Join(l.takeFrom(old, alloc), old.Close())
		}
		if err == nil { // another process has changed it meanwhile
			err = old.Close()
		}
		if err != nil && (!errors.Is(err, interfaces.ErrStateInUse) || !time.Now().Before(deadline)) {
			return fmt.Errorf("sticky data of allocation %s: %w", from, err)
		}
		if err := wake.Sleep(ctx, stickyPause); err != nil {
			return err
		}
	}
}

func (l *Lock) takeFrom(old *Lock, alloc *api.Allocation) error {
	if allocrunner.TasksRunning(old.Dir) {
		return &StillRunningError{old.ID}
	}
	tasks := slice.Map(alloc.GetTaskGroup().Tasks, func(t *api.Task) string { return t.Name })
	if err := allocdir.Gather(old.Dir, tasks); err != nil {
		return err
	}
	if l.saved == nil {
		alloc.PreviousAllocation = old.ID
		first, err := allocrunner.New(interfaces.Config{Alloc: alloc, Dir: l.Dir, Logger: l.logger})
		if err != nil {
			return &InvalidError{err}
		}
		if err := l.state.Put(interfaces.Saved{Alloc: first.Alloc(), Deployments: first.Deployments(),
			Life: l.life}); err != nil {
			return fmt.Errorf("the allocation can't be saved: %w", err)
		}
	}
	return allocdir.Pass(old.Dir, l.Dir)
}

// latestEnded returns the allocation from which the next one of alloc's name takes its data, empty for none.
// Errors: *UnreadError.
func (d Dir) latestEnded(alloc *api.Allocation) (id string, err error) {
	ids, err := d.IDs()
	var latest *api.Allocation
	for _, id := range ids {
		saved, err := d.Peek(id)
		switch {
		case err == nil && (saved == nil || !saved.Terminal || !sameName(saved.Alloc, alloc) ||
			!interfaces.Sticky(saved.Alloc)):
		case err != nil && !d.mayBe(id, alloc), !allocdir.HasSticky(d.Alloc(id)):
		case err != nil:
			return "", &UnreadError{ID: id, Name: alloc.Name, Err: err}
		case latest == nil || saved.Alloc.ModifyTime > latest.ModifyTime:
			latest = saved.Alloc
		}
	}
	if latest == nil {
		return "", err
	}
	return latest.ID, err
}

// StickyLeft returns interfaces.ErrSticky, wrapped, if an ended allocation has sticky data that no other one has taken.
func (d Dir) StickyLeft(alloc *api.Allocation) error {
	if !interfaces.Sticky(alloc) || !allocdir.HasSticky(d.Alloc(alloc.ID)) {
		return nil
	}
	return fmt.Errorf("allocation %s: %w", alloc.ID, interfaces.ErrSticky)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// claim is an allocation's directory that is this process's alone, by the lock of its state, with what another taskapi has left in it.
type claim struct {
	layout layout
	id     string
	dir    string
	logger *slog.Logger
	state  *state.DB // nil when it is only held
	hold   func() error
	saved  *interfaces.Saved // nil for an allocation that has not begun, or of which nothing is known
	lost   bool              // there is more of it than a state that is empty
	life   string            // the ID of the allocation's present life
}

// claim takes an allocation's directory, and makes it when it is missing. Errors: state.ErrInUse when another taskapi has it, those of
// a state that can't be read, and one for tasks that run without a state.
func (l layout) claim(id string, logger *slog.Logger) (*claim, error) {
	c := &claim{layout: l, id: id, dir: l.alloc(id), logger: logger}
	err := c.lock()
	for errors.Is(err, fs.ErrNotExist) { // a gc has just removed the directory
		err = c.lock()
	}
	if err != nil {
		return nil, l.mendable(id, err)
	}
	c.saved, err = c.state.Saved(id)
	if errors.Is(err, state.ErrNotFound) {
		err = nil
		if allocrunner.TasksRunning(c.dir) {
			err = fmt.Errorf("allocation %s has no state, and yet tasks of it run: its %s was removed or emptied; '%s' ends them",
				id, state.FileName, l.command("stop", id))
		}
	}
	if err != nil {
		return nil, errors.Join(l.mendable(id, err), c.close())
	}
	c.life = lifeOf(c.saved)
	return c, nil
}

// lock opens the state, which nobody else has then.
func (c *claim) lock() error {
	path := c.layout.state(c.id)
	if err := os.MkdirAll(c.dir, 0o711); err != nil {
		return fmt.Errorf("allocation directory %s can't be made: %w", c.dir, unwrapPath(err))
	}
	if _, err := trusted(c.dir); err != nil {
		return err
	}
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		_, err := os.Lstat(filepath.Join(c.dir, "alloc")) // an allocation that has begun has it
		c.lost = err == nil
	}
	var err error
	c.state, err = state.Open(path, version)
	return err
}

// undo removes the directory of an allocation that has not begun, and that err has refused: nothing was started or changed.
func (c *claim) undo(err error) error {
	if !isUsage(err) || c.saved != nil || c.lost || c.state == nil {
		return err
	}
	if _, savedErr := c.state.Saved(c.id); !errors.Is(savedErr, state.ErrNotFound) {
		return err
	}
	return errors.Join(err, allocrunner.RemoveDir(c.dir))
}

// lifeOf is the ID of the life that goes on with what was saved, a new one when nothing was. An allocation that ran before lives had IDs
// has none, and goes on without: its tasks have tokens that name none.
func lifeOf(saved *interfaces.Saved) string {
	if saved == nil || saved.Life == "" && len(saved.Tasks) == 0 { // no task has had a token
		return uuid.NewString()
	}
	return saved.Life
}

// saved is an allocation as whoever ran it has left it. Its errors are those of state.Read.
func (l layout) saved(id string) (*interfaces.Saved, error) {
	saved, err := state.ReadAlloc(l.state(id), id)
	return saved, l.mendable(id, err)
}

// mendable says of a damaged state how it is mended.
func (l layout) mendable(id string, err error) error {
	if !errors.Is(err, state.ErrDamaged) {
		return err
	}
	return fmt.Errorf("%w; '%s' keeps what can be read of it", err, l.command("state repair", id))
}

// hold is claim for a state that can't be written: nothing of what follows is written down.
func (l layout) hold(id string, logger *slog.Logger) (*claim, error) {
	c := &claim{layout: l, id: id, dir: l.alloc(id), logger: logger}
	var err error
	if c.saved, c.hold, err = state.Hold(l.state(id), id); err != nil {
		return nil, l.mendable(id, err)
	}
	return c, nil
}

func (c *claim) close() error {
	if c.state == nil {
		return c.hold()
	}
	return c.state.Close()
}

// kept is the state as a runner has it.
func (c *claim) kept() interfaces.State {
	if c.state == nil {
		return nil
	}
	return c.state
}

// reread has saved be what is written down by now.
func (c *claim) reread() error {
	if c.state == nil {
		return nil
	}
	var err error
	c.saved, err = c.state.Saved(c.id)
	return err
}

// anew forgets how the allocation stood, and has it begin again as next, under the same ID. Its directories stay. Nobody else can claim
// them in between, unless this fails; whoever comes after a kill goes on with next.
func (c *claim) anew(alloc *api.Allocation) error {
	first, err := allocrunner.New(interfaces.Config{Alloc: alloc, Dir: c.dir, Logger: c.logger})
	if err != nil {
		return usage(err)
	}
	life := uuid.NewString()
	next, err := c.state.Anew(interfaces.Change{ID: c.id, Alloc: first.Alloc(), Life: life})
	if err != nil {
		return fmt.Errorf("the state of the allocation that ended can't be replaced: %w", err)
	}
	c.state, c.saved, c.life = next, nil, life
	return nil
}

// concludes writes down that nothing follows an allocation that is over, if that was to be otherwise.
func (c *claim) concludes() error {
	if c.state == nil {
		return nil
	}
	saved, err := c.state.Saved(c.id)
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	if err != nil || !saved.Over || !interfaces.Replaced(saved.Alloc) {
		return err
	}
	interfaces.StopRequest{}.Apply(saved.Alloc)
	saved.Alloc.ModifyIndex++
	return c.state.Put(interfaces.Change{ID: c.id, Alloc: saved.Alloc})
}

// tryAnew finds out whether anew could do so now.
func (c *claim) tryAnew() error { return c.state.TryAnew() }

// errOver refuses an allocation that has been run to its end.
func (c *claim) errOver() error {
	return usage(fmt.Errorf("allocation %s has been run before and was last %s: give another --alloc-id, or none; --force runs it anew",
		c.id, c.saved.Alloc.ClientStatus))
}

// stops reports that somebody has asked for the end of an allocation.
func stops(a *api.Allocation) bool { return a.DesiredStatus == api.AllocDesiredStatusStop }

// goesOn is what differs between an allocation that is not over and the one asked for, or why it can't go on as that.
func (l layout) goesOn(is, asked *api.Allocation, force bool) ([]jobspec.Change, error) {
	if is.TaskGroup != asked.TaskGroup || is.JobID != asked.JobID {
		return nil, usage(errOtherJob(is, asked))
	}
	changes := jobspec.Changes(is.Job, asked.Job, asked.TaskGroup)
	destructive := jobspec.Destructive(changes)
	switch {
	case force || len(changes) == 0 || interfaces.Replaced(is): // it ends for another version already
		return changes, nil
	case stops(is):
		return nil, usage(fmt.Errorf("allocation %s is being stopped, and the job is another than its own: '%s' completes that",
			is.ID, l.command("stop", is.ID)))
	case len(destructive) > 0:
		return nil, usage(errDestructive(is.ID, destructive))
	}
	return changes, nil
}

// take decides how what was left goes on, when another job may be wanted than the one that it has: the changes that were made in place,
// or what has to follow it, nil for nothing.
func (c *claim) take(ctx context.Context, asked *api.Allocation, force bool) (changes []jobspec.Change, next *api.Allocation, err error) {
	switch {
	case c.saved == nil && c.lost && !force:
		return nil, nil, usage(fmt.Errorf("allocation %s has been run before, and its %s was removed or emptied: give another --alloc-id, or none; --force runs it anew",
			c.id, state.FileName))
	case c.saved == nil:
		return nil, nil, nil
	case c.saved.Over && !force && !interfaces.Replaced(c.saved.Alloc):
		return nil, nil, c.errOver()
	case c.saved.Over:
		return nil, nil, c.anew(asked)
	}
	changes, err = c.layout.goesOn(c.saved.Alloc, asked, force)
	switch {
	case err == nil && interfaces.Replaced(c.saved.Alloc): // somebody forced it, and what follows is what was asked for last
		return nil, asked, nil
	case err != nil || len(changes) == 0:
		return nil, nil, err
	case force && (len(jobspec.Destructive(changes)) > 0 || stops(c.saved.Alloc)):
		return nil, asked, nil
	}
	return changes, nil, c.update(ctx, asked.Job)
}

// update gives what was left another version of its job, in place. The runner that does so is never run: the one that goes on with the
// allocation begins with the new version, and so do all of its hooks.
func (c *claim) update(ctx context.Context, job *api.Job) error {
	runner, err := allocrunner.New(interfaces.Config{Alloc: c.saved.Alloc, Dir: c.dir, Logger: c.logger, State: c.state, Saved: c.saved})
	if err != nil {
		return fmt.Errorf("allocation %s: %w", c.id, err)
	}
	if err := runner.Update(ctx, job); err != nil {
		err = fmt.Errorf("allocation %s: %w", c.id, err)
		if errors.Is(err, interfaces.ErrInvalidJob) {
			return usage(err)
		}
		return err
	}
	saved := *c.saved
	saved.Alloc = runner.Alloc()
	c.saved = &saved
	return nil
}

// errDestructive refuses changes that need new processes.
func errDestructive(id string, changes []jobspec.Change) error {
	var lines []string
	for _, change := range changes {
		lines = append(lines, "  "+linewriter.OneLine(change.String()))
	}
	return fmt.Errorf("allocation %s can't take over this job without new processes, because of\n%s\n"+
		"with --force it is stopped in order and run anew; another --alloc-id, or none, leaves it alone", id, strings.Join(lines, "\n"))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// shift is taskapi at work on one allocation, from its start to its end. When the job is replaced by force, the allocation ends in
// order and begins anew, under the same ID, in the same directory and process.
type shift struct {
	options runOptions
	claim   *claim // what it works on
	layout  layout
	printer *printer
	log     *linewriter.Writer // of the logger
	logger  *slog.Logger
	world   world
	signals chan os.Signal // what has come, and is to be acted on
	bare    bool           // its tasks have no API: all that is wanted of them is their end

	asking sync.Mutex // held while an end is asked for and written down, so that what is asked for last stands; never within mu

	mu      sync.Mutex             // guards the fields below
	side    *sidecar               // at work; nil while none is
	next    *api.Allocation        // what follows; nil for nothing
	stopped bool                   // somebody has asked for the end: nothing follows
	how     interfaces.StopRequest // what was asked for then
	killed  bool                   // somebody wants no delay
	leaving bool                   // somebody wants the tasks to be left to another taskapi
}

// newShift makes one that prints and logs into queues.
func newShift(opts runOptions, c *claim, p *printer, log *linewriter.Writer, w world) *shift {
	return &shift{options: opts, claim: c, layout: c.layout, printer: p, log: log, logger: c.logger, world: w, signals: make(chan os.Signal, 2)}
}

// work runs the allocation that has been claimed to its end, and those that follow it, and reports whether the last is over. alloc is
// what begins when nothing was left. Signals are heard meanwhile.
func (s *shift) work(ctx context.Context, alloc *api.Allocation) (over bool, err error) {
	release := s.onSignals()
	defer release()
	defer flushAll(s.printer.queue, s.log) // while a reader that has gone away is no reason to die of SIGPIPE
	for {
		over, err = s.workOnce(ctx, alloc)
		next, stopped, leaving := s.following()
		switch {
		case !over:
			return false, err
		case stopped || ctx.Err() != nil:
			return true, errors.Join(err, s.claim.concludes())
		case next == nil:
			return true, err
		}
		if err := s.claim.anew(next); err != nil {
			return true, err
		}
		s.printer.fit(next)
		if leaving { // nothing of it runs yet, and it is written down that it follows
			s.printer.allocEvent("Left", fmt.Sprintf("the next version of the job is to begin; '%s' %s has it do so",
				s.layout.command("run", "--alloc-id", next.ID), withJobFile))
			return false, nil
		}
		alloc = next
	}
}

// workOnce runs an allocation, and reports whether that is over.
func (s *shift) workOnce(ctx context.Context, alloc *api.Allocation) (over bool, err error) {
	side, err := newSidecar(s, alloc)
	if err != nil {
		return false, err
	}
	s.announce(side)
	s.begin(ctx, side)
	err = side.run(ctx)
	return side.runner.Terminal(), s.concluded(err, side)
}

// announce says that the allocation begins, or goes on.
func (s *shift) announce(side *sidecar) {
	kind := "Starting"
	if s.claim.saved != nil {
		kind = "Resuming"
	}
	s.printer.announce(time.Now(), kind, side.runner.Alloc(), s.layout)
}

// begin makes the sidecar the one at work. What has been asked for before is asked of it.
func (s *shift) begin(ctx context.Context, side *sidecar) {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	s.side = side
	stop, leave, kill := s.stopped || s.next != nil, s.leaving, s.killed
	how := interfaces.StopRequest{Replaced: true}
	if s.stopped {
		how = s.how
	}
	s.mu.Unlock()
	if leave {
		side.runner.Detach()
	}
	if kill {
		side.runner.Kill()
	}
	if !stop {
		return
	}
	if err := side.runner.Stop(ctx, how); err != nil {
		s.logger.Warn(warnStop, "error", err)
	}
}

// warnStop is for a stop that is under way and not on the disk.
const warnStop = "the stop is not written down: if taskapi is killed before it is over, stop it once more"

// following ends the work of a sidecar and gives what follows, whether somebody has asked for the end, after which nothing does, and
// whether what follows is another taskapi's.
func (s *shift) following() (next *api.Allocation, stopped, leaving bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = s.next
	s.side, s.next = nil, nil
	return next, s.stopped, s.leaving
}

// concluded says how the allocation ended, and gives the command's error.
func (s *shift) concluded(err error, side *sidecar) error {
	alloc := side.runner.Alloc()
	switch {
	case err == nil:
		s.printer.ended(alloc, "")
		return nil
	case !side.runner.Terminal() && !errors.Is(err, interfaces.ErrDetached) && s.bare:
		return err // they are ended in another way
	case !side.runner.Terminal() && !errors.Is(err, interfaces.ErrDetached):
		s.printer.allocEvent("Left", "it can't be taken over, and its tasks run on: "+oneLine(err.Error()))
		return errSilent // the event has said why
	case errors.Is(err, interfaces.ErrDetached):
		s.printer.allocEvent("Left", fmt.Sprintf("the tasks run on; '%s' %s takes them over", s.layout.command("run", "--alloc-id", alloc.ID), withJobFile))
		return nil
	}
	s.printer.ended(alloc, oneLine(err.Error()))
	return errSilent // the event has said why
}

// stop has the allocation end in order, and nothing follow it. It returns once that is written down. first is called when nobody has
// asked before.
func (s *shift) stop(ctx context.Context, how interfaces.StopRequest, first func()) error {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	was, side := s.stopped, s.side
	s.stopped, s.how, s.next = true, how, nil
	s.mu.Unlock()
	if !was {
		first()
	}
	if side == nil {
		return nil
	}
	return side.runner.Stop(ctx, how)
}

// kill ends the allocation at once.
func (s *shift) kill() {
	s.mu.Lock()
	side := s.side
	s.killed = true
	s.mu.Unlock()
	if side != nil {
		side.runner.Kill()
	}
}

// leave ends this process's work and has the tasks run on. What is to follow the allocation, if it has ended, does so in another process.
func (s *shift) leave() {
	s.mu.Lock()
	was, side := s.leaving, s.side
	s.leaving = true
	s.mu.Unlock()
	if !was {
		s.printer.allocEvent("Leaving", "the tasks run on, for another taskapi to take over")
	}
	if side != nil {
		side.runner.Detach()
	}
}

// isLeaving reports that another taskapi is to take over.
func (s *shift) isLeaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// successor is the allocation that follows this one, nil for none.
func (s *shift) successor() *api.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// updated says what the allocation goes on with.
func (s *shift) updated(changes []jobspec.Change) {
	for _, c := range changes {
		s.printer.allocEvent("Updated", c.String())
	}
}

// replace has the allocation end in order, and another one follow it. Errors: interfaces.ErrTerminal when it ends for another reason, and
// those of a disk on which nothing could begin: then nothing ends.
func (s *shift) replace(ctx context.Context, next *api.Allocation, changes []jobspec.Change) error {
	if err := s.claim.tryAnew(); err != nil {
		return err
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	side := s.side
	if side == nil || s.stopped || s.leaving || s.next == nil && side.ending() {
		s.mu.Unlock()
		return fmt.Errorf("replace the job: %w", interfaces.ErrTerminal)
	}
	s.next = next
	s.mu.Unlock()
	err := side.runner.Stop(ctx, interfaces.StopRequest{Replaced: true})
	s.replacing(changes)
	return err
}

// replacing says why the allocation ends.
func (s *shift) replacing(changes []jobspec.Change) {
	for _, c := range jobspec.Destructive(changes) {
		s.printer.allocEvent("Replacing", c.String())
	}
	s.printer.allocEvent("Replacing", "stopping in order, to run anew with another version of the job")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/socket"
)

func stopCommand(w world) *cobra.Command {
	s := stopping{world: w}
	var dataDir string
	cmd := &cobra.Command{
		Use:   "stop [flags] [ALLOC]",
		Short: "Stop an allocation gracefully, or at once with --now",
		Long: `Stops an allocation gracefully (shutdown_delay, kill_signal, kill_timeout, poststop tasks), prints its events and returns when it has
ended. Without ALLOC it stops the only one that runs. --now, or a second Ctrl-C, kills every task at once. If the allocation's taskapi
process has exited, this command resumes the allocation and stops it. If its state is missing or damaged, its tasks are killed at once.
Exit code: 0 when the allocation has ended, 1 when it could not be stopped.`,
		Args:              optionalAllocation,
		ValidArgsFunction: completeAllocation(&dataDir, w),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if s.layout, err = newLayout(dataDir, w); err != nil {
				return err
			}
			if s.id, err = s.layout.pick(cmd.Context(), args); err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
	addDataDir(cmd, &dataDir)
	cmd.Flags().BoolVar(&s.detach, "detach", false, "return when the stop has begun")
	cmd.Flags().BoolVar(&s.how.NoShutdownDelay, "no-shutdown-delay", false, "skip the shutdown_delay of the group and of the tasks, also one that has begun")
	cmd.Flags().BoolVar(&s.now, "now", false, "kill every task at once (SIGKILL), also when a stop is under way; poststop tasks don't run")
	cmd.Flags().BoolVar(&s.detached, "detached", false, "")
	_ = cmd.Flags().MarkHidden("detached") // it has just been added
	return cmd
}

// stopping is taskapi stop.
type stopping struct {
	layout   layout
	id       string
	how      interfaces.StopRequest
	now      bool // no delay at all
	detach   bool
	detached bool // this is the process that --detach has started
	world    world
}

// run stops the allocation: its sidecar does, or this process when there is none.
func (s *stopping) run(ctx context.Context) error {
	for since := time.Now(); ; {
		f := &follower{layout: s.layout, id: s.id, make: printers(s.world, false), quiet: true}
		err := s.ask(ctx, f)
		if err == nil {
			return s.await(ctx, f)
		}
		if answer, ok := errors.AsType[*refusedError](err); ok && answer.status == http.StatusBadRequest {
			return fmt.Errorf("allocation %s: %w", s.id, answer)
		}
		saved, readErr := s.layout.saved(s.id)
		switch {
		case errors.Is(readErr, state.ErrInUse) && refused(err) && time.Since(since) > refusedTimeout:
			return s.bySignal(ctx, err)
		case errors.Is(readErr, state.ErrInUse) && time.Since(since) < busyTimeout: // it begins, or ends just now
			time.Sleep(startPause)
			continue
		case errors.Is(readErr, state.ErrInUse):
			return s.bySignal(ctx, err)
		case errors.Is(readErr, state.ErrNotFound), errors.Is(readErr, state.ErrDamaged):
			return s.endLeft(ctx, readErr)
		case readErr != nil: // it can be read by somebody else, or at another time
			return fmt.Errorf("allocation %s can't be stopped in order: %w", s.id, readErr)
		case saved.Over:
			return s.concluded(saved)
		case s.detach:
			return s.inBackground(ctx)
		}
		if err := s.takeOver(ctx); !errors.Is(err, state.ErrInUse) || time.Since(since) > busyTimeout {
			return err
		}
	}
}

// concluded says that the allocation is over, and sees to it that nothing follows.
func (s *stopping) concluded(saved *interfaces.Saved) error {
	if interfaces.Replaced(saved.Alloc) {
		lock, err := s.layout.lock(s.id, newLogger(false, s.world))
		if err != nil {
			return err
		}
		if err := errors.Join(lock.FinishReplacement(), lock.Close()); err != nil {
			return err
		}
	}
	return s.say("allocation %s is over already: it is %s", s.id, saved.Alloc.ClientStatus)
}

func (s *stopping) say(format string, args ...any) error {
	_, err := fmt.Fprintf(s.world.stdout, format+"\n", args...)
	return err
}

// ask asks the sidecar for the end of the allocation, of which the follower knows how it was before. A refusal is as good as silence:
// what is over lets nobody in any more.
func (s *stopping) ask(ctx context.Context, f *follower) error {
	c := s.layout.client(s.id)
	defer c.close()
	alloc, _, err := c.allocation(ctx)
	if err != nil {
		return err
	}
	f.show(alloc)
	err = c.stop(ctx, s.how, s.now)
	if failed, ok := errors.AsType[*refusedError](err); ok && failed.status >= http.StatusInternalServerError {
		if now, _, getErr := c.allocation(ctx); getErr == nil && now.DesiredStatus == api.AllocDesiredStatusStop { // it stops all the same
			fmt.Fprintf(s.world.stderr, "taskapi: allocation %s: %v\n", s.id, failed)
			return nil
		}
	}
	return err
}

// bySignal stops the allocation of a taskapi that does not take what it is asked: signals need no token.
func (s *stopping) bySignal(ctx context.Context, why error) error {
	c := s.layout.client(s.id)
	defer c.close()
	signals := []syscall.Signal{syscall.SIGTERM}
	if s.now {
		signals = append(signals, syscall.SIGINT) // another one, which ends it at once
	}
	pid, err := c.signal(ctx, signals...)
	if err != nil {
		return errors.Join(s.layout.errMute(s.id, why), err)
	}
	fmt.Fprintf(s.world.stderr, "taskapi: %v\n", s.layout.errMute(s.id, why))
	if err := s.say("allocation %s is being stopped, by a signal to process %d", s.id, pid); err != nil || s.detach {
		return err
	}
	for {
		saved, err := s.layout.saved(s.id)
		switch {
		case err == nil && saved.Over:
			return s.say("allocation %s is over: it is %s", s.id, saved.Alloc.ClientStatus)
		case err != nil && !errors.Is(err, state.ErrInUse):
			return fmt.Errorf("allocation %s: %w", s.id, err)
		case err == nil:
			return fmt.Errorf("allocation %s: %w: '%s' ends it", s.id, errAbandoned, s.layout.Command("stop", s.id))
		}
		time.Sleep(startPause)
	}
}

// await waits for the end that the sidecar has begun.
func (s *stopping) await(ctx context.Context, f *follower) error {
	if s.detach {
		return s.say("allocation %s is being stopped", s.id)
	}
	ctx, release := s.onSignals(ctx, f.printer)
	defer release()
	alloc, err := f.follow(ctx)
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("allocation %s is still being stopped; nobody waits for it any more", s.id)
	}
	if err != nil {
		return err
	}
	f.printer.ended(alloc, "")
	return nil
}

// onSignals has the second SIGINT end the allocation at once, and SIGTERM end the waiting, which the context tells.
func (s *stopping) onSignals(ctx context.Context, p *printer) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	var background sync.WaitGroup
	background.Go(func() {
		var first time.Time // of SIGINT
		for {
			select {
			case <-ctx.Done():
				return
			case sig := <-signals:
				switch {
				case sig == syscall.SIGTERM:
					cancel()
				case first.IsZero():
					first = time.Now()
					p.allocEvent("Stopping", "it is being stopped in order; once more to end it at once, SIGTERM to wait no longer")
				case time.Since(first) >= agent.SameStop:
					p.allocEvent("Killing", "ending at once")
					s.kill(ctx)
				}
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		cancel()
		background.Wait()
	}
}

// kill asks the sidecar to end the allocation at once.
func (s *stopping) kill(ctx context.Context) {
	c := s.layout.client(s.id)
	defer c.close()
	if err := c.stop(ctx, s.how, true); err != nil && ctx.Err() == nil {
		fmt.Fprintf(s.world.stderr, "taskapi: allocation %s can't be told to end at once: %v\n", s.id, err)
	}
}

// takeOver runs the allocation to its end in this process, and ends its tasks in any case: without their API when that can't be had, and
// at once when it must be. Errors: state.ErrInUse when somebody else was faster.
func (s *stopping) takeOver(ctx context.Context) (err error) {
	w := s.world
	if s.detached {
		w.stdout, w.stderr = boundedLog{w.stdout}, boundedLog{w.stderr}
	}
	log := queuedLog(w)
	defer flushAll(log)
	w.stderr = log
	logger := newLogger(false, w)
	lock, lacks, err := s.lock(logger)
	if err != nil {
		return err
	}
	defer func() {
		if sockErr := s.layout.removeDeadSockets(s.id); sockErr != nil {
			fmt.Fprintf(w.stderr, "taskapi: %v\n", sockErr)
		}
		err = errors.Join(err, lock.Close())
	}()
	if lock.Saved() == nil || lock.Saved().Over {
		return nil // somebody else was faster, and is done
	}
	kept, settingsErr := s.layout.remembered(s.id)
	lacks = errors.Join(lacks, settingsErr)
	p := newQueuedPrinter(w.stdout, lock.Saved().Alloc, false)
	p.allocEvent("Stopping", "its taskapi is gone: taking it over to stop it")
	var over bool
	cfg := agentConfig(s.layout, lock, logger, kept, p, log, w)
	cfg.Stop, cfg.Kill = &s.how, s.now
	if lacks == nil {
		if over, lacks = agent.New(cfg).Run(ctx, nil); over || lacks == nil {
			return nil // also when it has failed, or when it was left: it is stopped, or will be
		}
		if err := lock.Reload(); err != nil {
			return err
		}
	}
	p.allocEvent("Stopping", "its tasks are ended without their API, which can't be had: "+linewriter.OneLine(lacks.Error()))
	cfg.NoAPI = true
	if over, err = agent.New(cfg).Run(ctx, nil); !over && err != nil {
		return s.endLeft(ctx, fmt.Errorf("allocation %s can't be stopped in order: %w", s.id, err))
	}
	if over && lock.ReadOnly() {
		return fmt.Errorf("the tasks of allocation %s have ended, and that could not be written to %s: when it can be, '%s' does",
			s.id, s.layout.State(s.id), s.layout.Command("stop", s.id))
	}
	return nil
}

// lock locks the allocation, also when nothing can be written there; lacks says so.
func (s *stopping) lock(logger *slog.Logger) (lock *datadir.Lock, lacks, err error) {
	lock, err = s.layout.lock(s.id, logger)
	switch {
	case !errors.Is(err, state.ErrFile) && !errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return lock, nil, err
	}
	held, holdErr := s.layout.LockReadOnly(s.id, logger)
	if holdErr != nil {
		return nil, nil, err
	}
	return held, err, nil
}

// inBackground is takeOver in a process of its own.
func (s *stopping) inBackground(ctx context.Context) error {
	args := []string{"stop", "--data-dir=" + string(s.layout.Dir), fmt.Sprintf("--no-shutdown-delay=%t", s.how.NoShutdownDelay),
		fmt.Sprintf("--now=%t", s.now), s.id}
	if err := s.layout.background(ctx, s.id, s.world, args, stopsOrIsOver); err != nil {
		return err
	}
	return s.say("allocation %s is being stopped, by a taskapi in the background", s.id)
}

func stopsOrIsOver(alloc *api.Allocation) (bool, error) {
	return alloc.DesiredStatus == api.AllocDesiredStatusStop || alloc.ClientTerminalStatus(), nil
}

// removeDeadSockets removes the sockets of an allocation, the operator's and the tasks', that a taskapi that was killed has left. Tasks are
// known by their directories, since the state may be lost; a socket on which somebody listens stays.
func (l layout) removeDeadSockets(id string) error {
	entries, err := os.ReadDir(l.Alloc(id))
	errs := []error{err, socket.RemoveStale(l.OperatorSocket(id))}
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, socket.RemoveStale(l.TaskSocket(id, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// endLeft ends what runs of an allocation whose state can't be read.
func (s *stopping) endLeft(ctx context.Context, why error) error {
	dir := s.layout.Alloc(s.id)
	fmt.Fprintf(s.world.stderr, "taskapi: %v\n", why)
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("allocation %s: %w", s.id, unwrapPath(err))
	}
	killed, err := allocrunner.KillOrphans(ctx, dir)
	if err != nil {
		return fmt.Errorf("allocation %s could not be ended: %w", s.id, err)
	}
	if err := s.layout.removeDeadSockets(s.id); err != nil {
		fmt.Fprintf(s.world.stderr, "taskapi: %v\n", err)
	}
	if killed == 0 {
		return s.say("allocation %s: nothing of it runs", s.id)
	}
	return s.say("allocation %s could not be stopped in order: its tasks were ended at once (%d %s)", s.id, killed,
		plural(killed, "process", "processes"))
}

package lifecycle

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
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/slice"
	"taskapi/socket"
)

// Stop makes the command. stopTasks stops tasks of an allocation.
func Stop(w base.Environment, stopTasks func(context.Context, base.Environment, []base.Target, bool) error,
) *cobra.Command {
	var at base.TargetFlags
	var all, purge bool
	s := stopping{environment: w}
	cmd := &cobra.Command{
		Use: "stop [flags] [ALLOC...] | ALLOC TASK...",
		SuggestFor: []string{"kill", "delete", "remove", "destroy", "down",
			"halt", "terminate", "end", "pause", "suspend"},
		Short: "Stop allocations, or some tasks, gracefully",
		Long: `Stops allocations gracefully: with shutdown_delay, kill_signal, kill_timeout and poststop tasks. With TASK, it
stops these tasks alone, until 'taskapi start' starts them; the allocation goes on, also when none of its tasks runs.

It prints the events and returns when they have ended. Without ALLOC, it stops the only allocation that runs; in a
script, quote what may be empty: stop "$ALLOC" refuses an empty name. A job's name stops all of the job's allocations.
Several are stopped at the same time. --now, or a second Ctrl-C, kills every task immediately. --purge then removes
the allocation with its logs and state, as 'taskapi gc' does.

If the allocation's taskapi has exited, stop resumes the allocation and stops it. If the files of the API can't be
read, the tasks are stopped without their API. If the state is missing or damaged, the tasks are killed. If another
version of taskapi wrote the state, that version has to stop the tasks, unless --now is given. stop can't find tasks
by a directory that was removed, or that now belongs to another user.

If the allocation's taskapi is frozen (SIGSTOP) or hangs, the error names its process. --now kills that process after
five seconds, and then the tasks.

Exit code: 0 when the allocations have ended, 1 when one could not be stopped.`,
		Example: `  taskapi stop
  taskapi stop --now hello
  taskapi stop hello greeter
  taskapi stop --all --purge`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case all && at.Given(args):
				return base.Usagef("--all stops every allocation that runs: leave out ALLOC, or --all")
			case purge && s.detach:
				return base.Usagef("--purge removes an allocation when it has ended: leave out --detach, or --purge")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch tasks, err := at.MeansTasks(cmd.Context(), args); {
			case err != nil:
				return err
			case tasks && (s.how != client.StopOptions{} || purge):
				return base.Usagef("--now, --purge and --no-shutdown-delay are for whole allocations: leave them out, or TASK")
			case tasks:
				found, err := at.FindTasks(cmd.Context(), args)
				if err != nil {
					return err
				}
				return stopTasks(cmd.Context(), w, found, s.detach)
			}
			found, err := toStop(cmd.Context(), w, &at, args, all)
			if err != nil && purge {
				err = fmt.Errorf("%w; 'taskapi gc ALLOC' removes an allocation that has ended", err)
			}
			if _, ended := errors.AsType[*base.NotRunningError](err); err != nil && !ended {
				return err
			}
			return errors.Join(s.runAll(cmd.Context(), found, purge), err)
		},
	}
	at.Add(cmd, w, base.ToEnd)
	complete := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		allocs, how := complete(cmd, nil, begun)
		if len(args) == 0 {
			return allocs, how
		}
		tasks, _ := complete(cmd, args, begun)
		return append(allocs, tasks...), how
	}
	cmd.Flags().BoolVar(&s.how.Now, "now", false,
		"kill every task immediately (SIGKILL), also when a stop is under way; poststop tasks don't run")
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the allocation with its directory when it has ended")
	cmd.Flags().BoolVar(&all, "all", false, "stop every allocation that runs")
	cmd.Flags().BoolVarP(&s.detach, "detach", "d", false, "return when the stop has begun")
	cmd.Flags().BoolVar(&s.how.NoShutdownDelay, "no-shutdown-delay", false,
		"skip the shutdown_delay of the group and of the tasks, also one that is under way")
	cmd.Flags().BoolVar(&s.detached, "detached", false, "")
	_ = cmd.Flags().MarkHidden("detached") // it has just been added
	return cmd
}

// toStop returns the named allocations, the only one that runs, or with all every one that runs. A
// *base.NotRunningError is about some of the names.
func toStop(ctx context.Context, w base.Environment, at *base.TargetFlags, args []string, all bool) ([]base.Target,
	error) {
	switch {
	case at.Given(args):
		return named(ctx, w, at, args)
	case all:
		f, err := base.Look(ctx, w, at.DataDir)
		if err != nil {
			return nil, err
		}
		found := f.Running()
		if len(found) == 0 {
			err = w.Printf("no allocation runs in %s\n", f.Dirs())
		}
		return found, err
	}
	t, err := at.Find(ctx, nil)
	if err != nil {
		return nil, err
	}
	return []base.Target{t}, nil
}

// runAll stops allocations. The tasks of all begin to stop at once; the events are printed of one after the other.
func (s *stopping) runAll(ctx context.Context, all []base.Target, purge bool) error {
	var begun sync.WaitGroup
	defer begun.Wait()
	each := make([]stopping, len(all))
	if len(all) > 1 {
		s.labels = follow.NewLabels(slice.Map(all, func(t base.Target) *api.Allocation { return t.Alloc }), s.environment)
	}
	for i, t := range all {
		each[i] = *s
		if each[i].Target = t; len(all) > 1 {
			each[i].begun = make(chan *api.Allocation, 1)
			begun.Go(func() { each[i].begin(ctx) })
		}
	}
	var errs []error
	for i, t := range all {
		err := each[i].run(ctx)
		if err == nil && purge {
			err = printKept(remove(ctx, t, false, s.environment), s.environment)
		}
		errs = append(errs, err)
	}
	for _, t := range all {
		sayChildren(ctx, t, s.environment)
	}
	return errors.Join(errs...)
}

// sayChildren names the children of a stopped allocation that run on, as they do in Nomad.
func sayChildren(ctx context.Context, t base.Target, w base.Environment) {
	if t.Alloc == nil || t.Alloc.Job == nil || !interfaces.IsParent(t.Alloc.Job) {
		return
	}
	running, _ := t.Layout.Children(ctx, t.Alloc, false) // those that are known
	for _, child := range running {
		w.Warnf("%s runs on: '%s' stops it", child.Alloc.JobID, t.Layout.Command("stop", output.ShortID(child.ID)))
	}
}

type stopping struct {
	base.Target
	how         client.StopOptions
	detach      bool
	detached    bool                 // this is the process that --detach has started
	labels      *follow.Labels       // of several allocations; nil for one
	begun       chan *api.Allocation // gives what begin returns; nil where it is not called
	environment base.Environment
	out, log    *linewriter.Writer // the environment's stdout and stderr
}

// begin requests the stop before that of another allocation is followed. It gives the allocation as it was before, or
// nil, if that fails: then run reports why.
func (s *stopping) begin(ctx context.Context) {
	c := s.Client()
	defer c.Close()
	found := c.Locate(ctx, client.Patient)
	if found.Holder != client.Serving || c.Stop(ctx, s.how) != nil {
		found.Alloc = nil
	}
	s.begun <- found.Alloc
}

// run makes the allocation's taskapi stop it or, if there is none, stops it in this process. A slow reader of the
// output does not delay the stop.
func (s *stopping) run(ctx context.Context) error {
	if s.detached {
		s.environment.Stdout, s.environment.Stderr = boundedLogs(s.environment)
	}
	s.out = linewriter.New(s.environment.Stdout, func(lost int) []byte { return []byte(base.LinesLost(lost) + "\n") })
	s.log = base.QueuedLog(s.environment)
	s.environment.Stdout, s.environment.Stderr = s.out, s.log
	defer base.FlushAll(s.out, s.log)
	c := s.Client()
	defer c.Close()
	f := &follow.Follower{Target: s.Target, W: s.environment, Quiet: true, Kills: s.how.Now, Labels: s.labels}
	if s.begun != nil {
		if before := <-s.begun; before != nil {
			f.Show(before)
			return s.await(ctx, c, f)
		}
	}
	for since := time.Now(); ; {
		found := c.Locate(ctx, client.Patient)
		switch found.Holder {
		case client.Serving:
			f.Show(found.Alloc)
			err := s.request(ctx, c)
			answer, answered := errors.AsType[*client.StatusError](err)
			switch {
			case err == nil:
				return s.await(ctx, c, f)
			case answered && answer.Status == http.StatusBadRequest:
				return fmt.Errorf("allocation %s: %w", s.ID, answer)
			case time.Since(since) > client.BusyTimeout:
				if killed, err := s.bySignal(ctx, c, err); !killed {
					return err
				}
			}
			time.Sleep(client.Pause) // it has just ended, or is leaving
			continue
		case client.Refusing, client.Hanging:
			if killed, err := s.bySignal(ctx, c, found.Err); !killed {
				return err
			}
			since = time.Now()
			continue
		case client.Ended:
			return s.concluded(ctx, found.Saved)
		case client.Unreadable:
			if why := s.keeps(found.Err); why != nil {
				return fmt.Errorf("allocation %s can't be stopped gracefully: %w", s.ID, why)
			}
			return s.killOrphans(ctx, s.Layout.Explain(found.Err))
		}
		if s.detach {
			return s.unlessRemoved(s.inBackground(ctx))
		}
		if err := s.takeOver(ctx); !errors.Is(err, state.ErrInUse) || time.Since(since) > client.BusyTimeout {
			return s.unlessRemoved(err)
		}
	}
}

// unlessRemoved returns the error of a stop. It is none if the allocation has ended, and another process has removed
// it.
func (s *stopping) unlessRemoved(err error) error {
	if removed, ok := errors.AsType[*datadir.RemovedError](err); ok {
		return s.say("%v", removed)
	}
	return err
}

// keeps returns the reason not to kill the tasks of an allocation whose state can't be read: another user, another
// version or a later try can still stop them gracefully. It returns nil if nothing else would end the tasks.
func (s *stopping) keeps(err error) error {
	switch {
	case errors.Is(err, state.ErrNewer), errors.Is(err, state.ErrOlder):
		if !s.how.Now {
			return fmt.Errorf("%w; '%s' kills its tasks", err, s.Layout.Command("stop", "--now", s.ID))
		}
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE),
		errors.Is(err, syscall.ENOMEM):
		return err
	}
	return nil
}

// concluded says that the allocation has ended. It finishes a replacement that was under way, and kills tasks that are
// left.
func (s *stopping) concluded(ctx context.Context, saved *interfaces.Saved) error {
	if interfaces.Replaced(saved.Alloc) {
		lock, err := s.Layout.LockExisting(s.ID, base.NewLogger(false, s.environment))
		if err != nil {
			return err
		}
		if err := errors.Join(lock.FinishReplacement(), lock.Close()); err != nil {
			return err
		}
	}
	if allocrunner.TasksRunning(s.Layout.Alloc(s.ID)) {
		return s.killOrphans(ctx, fmt.Errorf("allocation %s has ended (%s), but tasks of it are still running", s.ID,
			saved.Alloc.ClientStatus))
	}
	return s.say("allocation %s has already ended (%s)", s.ID, saved.Alloc.ClientStatus)
}

func (s *stopping) say(format string, args ...any) error {
	return s.environment.Printf(format+"\n", args...)
}

func (s *stopping) warn(err error) { s.environment.Warnf("%v", err) }

// request makes the allocation's taskapi stop it.
func (s *stopping) request(ctx context.Context, c *client.Client) error {
	err := c.Stop(ctx, s.how)
	if failed, ok := errors.AsType[*client.StatusError](err); ok && failed.Status >= http.StatusInternalServerError {
		// it stops all the same
		if now, _, getErr := c.Allocation(ctx); getErr == nil && now.DesiredStatus == api.AllocDesiredStatusStop {
			s.warn(fmt.Errorf("allocation %s: %w", s.ID, failed))
			return nil
		}
	}
	return err
}

// reactTime is how long a taskapi may take, after a signal, to save that it stops.
const reactTime = 5 * time.Second

// bySignal stops the allocation of a taskapi that answers no request, by signals, which need no token. With --now, it
// kills a taskapi that does not act on them; the caller must then end the tasks.
func (s *stopping) bySignal(ctx context.Context, c *client.Client, why error) (killed bool, err error) {
	held := s.Layout.ErrHeld(s.ID, why)
	if _, frozen := errors.AsType[*client.FrozenError](why); frozen && !s.how.Now {
		return false, held
	}
	signals := []syscall.Signal{syscall.SIGTERM}
	if s.how.Now {
		signals = append(signals, syscall.SIGINT) // a second one kills
	}
	pid, err := c.Signal(ctx, signals...)
	if err != nil {
		return false, errors.Join(held, fmt.Errorf("allocation %s: %w", s.ID, err))
	}
	s.warn(held)
	if !s.reacts(ctx, c, pid) {
		if !s.how.Now {
			return false, fmt.Errorf("allocation %s is not being stopped: process %d does not act on SIGTERM; "+
				"'%s' kills it and the tasks", s.ID, pid, s.Layout.Command("stop --now", s.ID))
		}
		if err := s.say("process %d does not act on signals: killing it, and then the tasks", pid); err != nil {
			return false, err
		}
		if _, err := c.Signal(ctx, syscall.SIGKILL); err != nil && !errors.Is(err, client.ErrNoAnswer) {
			return false, fmt.Errorf("allocation %s: %w", s.ID, err)
		}
		return true, nil
	}
	return false, s.awaitSignalled(ctx, c, pid)
}

// reacts reports whether, according to its saved state, a taskapi acts on a signal to stop.
func (s *stopping) reacts(ctx context.Context, c *client.Client, pid int) bool {
	for since := time.Now(); ctx.Err() == nil && time.Since(since) < reactTime; time.Sleep(client.Pause) {
		saved, err := s.Layout.Peek(s.ID)
		known := err == nil && saved != nil
		if !known && !s.how.Now || !c.ServedBy(ctx, pid) ||
			known && (saved.Terminal || saved.Alloc.DesiredStatus == api.AllocDesiredStatusStop) {
			return true
		}
	}
	return false
}

// awaitSignalled waits for the end of an allocation whose taskapi has got a signal.
func (s *stopping) awaitSignalled(ctx context.Context, c *client.Client, pid int) error {
	if err := s.say("allocation %s is being stopped by a signal to process %d", s.ID, pid); err != nil || s.detach {
		return err
	}
	for ctx.Err() == nil {
		switch found := c.Locate(ctx, client.Timeouts{}); found.Holder {
		case client.Ended:
			return s.say("allocation %s has ended (%s)", s.ID, found.Alloc.ClientStatus)
		case client.Unreadable, client.Nobody:
			return s.ErrUnserved(found)
		case client.Hanging:
			if _, frozen := errors.AsType[*client.FrozenError](found.Err); frozen {
				return s.Layout.ErrHeld(s.ID, found.Err)
			}
		}
		time.Sleep(client.Pause)
	}
	return context.Cause(ctx)
}

// await waits for the end of a stop that has begun.
func (s *stopping) await(ctx context.Context, c *client.Client, f *follow.Follower) error {
	if s.detach {
		return s.say("allocation %s is being stopped", s.ID)
	}
	ctx, release := s.onSignals(ctx, c, f.Printer)
	defer release()
	alloc, err := f.Follow(ctx)
	unsaved, ok := errors.AsType[*follow.UnsavedError](err)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("allocation %s is still being stopped; this command waits no longer", s.ID)
	case ok && !unsaved.Saved: // no later command finds it running
		s.warn(err)
	case err != nil:
		return err
	}
	f.Printer.Ended(alloc, "")
	return nil
}

// onSignals kills the allocation at the second SIGINT, and cancels the context, which ends the wait, at SIGTERM.
func (s *stopping) onSignals(ctx context.Context, c *client.Client, p *follow.Printer) (_ context.Context,
	release func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	var first time.Time // of SIGINT
	end := start.Each(signals, func(sig syscall.Signal) {
		switch {
		case sig == syscall.SIGTERM:
			cancel()
		case first.IsZero():
			first = time.Now()
			p.AllocEvent("Stopping", "stopping gracefully; send again to kill immediately, SIGTERM to stop waiting")
		case time.Since(first) >= agent.SameStop:
			p.AllocEvent("Killing", "killing immediately")
			err := c.Stop(ctx, client.StopOptions{NoShutdownDelay: s.how.NoShutdownDelay, Now: true})
			if err != nil && ctx.Err() == nil {
				s.warn(fmt.Errorf("allocation %s could not be killed: %w", s.ID, err))
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		cancel()
		end()
	}
}

// takeOver resumes the allocation in this process and stops it. It ends the tasks in any case: without their API when
// that is unavailable, and with SIGKILL when it must. Errors: state.ErrInUse when another taskapi was faster.
func (s *stopping) takeOver(ctx context.Context) (err error) {
	logger := base.NewLogger(false, s.environment)
	lock, lacks, err := s.lock(logger)
	if err != nil {
		return err
	}
	defer func() {
		if sockErr := removeDeadSockets(s.Target); sockErr != nil {
			s.warn(sockErr)
		}
		err = errors.Join(err, lock.Close())
	}()
	if lock.Saved() == nil || lock.Saved().Terminal {
		return nil // another taskapi was faster, and has exited
	}
	kept, settingsErr := s.Layout.Remembered(s.ID)
	lacks = errors.Join(lacks, settingsErr)
	p := follow.NewPrinter(s.out, lock.Saved().Alloc, false)
	p.Queue = s.out
	s.labels.Apply(p, lock.Saved().Alloc)
	p.AllocEvent("Stopping", "its taskapi process has exited: resuming it to stop it")
	var over bool
	cfg := start.AgentConfig(s.Layout, lock.ID, lock, logger, kept, p, s.log, s.environment)
	defer cfg.Cluster.Close()
	cfg.Stop, cfg.Kill = &interfaces.StopRequest{NoShutdownDelay: s.how.NoShutdownDelay}, s.how.Now
	if lacks == nil {
		if over, lacks = agent.New(cfg).Run(ctx, nil); over || lacks == nil {
			return nil // also when it has failed, or was detached: it is stopped, or will be
		}
		if err := lock.Reload(); err != nil {
			return err
		}
	}
	p.AllocEvent("Stopping", "stopping its tasks without their API, which is unavailable: "+
		linewriter.OneLine(lacks.Error()))
	cfg.NoAPI = true
	if over, err = agent.New(cfg).Run(ctx, nil); !over && err != nil {
		return s.killOrphans(ctx, fmt.Errorf("allocation %s can't be stopped gracefully: %w", s.ID, err))
	}
	if over && lock.ReadOnly() {
		return &follow.UnsavedError{Target: s.Target, Saved: true}
	}
	return nil
}

// lock locks the allocation, even if nothing can be written there; lacks then says so.
func (s *stopping) lock(logger *slog.Logger) (lock *datadir.Lock, lacks, err error) {
	lock, err = s.Layout.LockExisting(s.ID, logger)
	switch {
	case !errors.Is(err, state.ErrFile) && !errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission) &&
		os.Geteuid() != 0:
		return lock, nil, err
	}
	held, holdErr := s.Layout.LockReadOnly(s.ID, logger)
	if holdErr != nil {
		return nil, nil, err
	}
	return held, err, nil
}

// inBackground is takeOver in a process of its own.
func (s *stopping) inBackground(ctx context.Context) error {
	args := []string{"stop", "--data-dir=" + string(s.Layout.Dir), fmt.Sprintf("--now=%t", s.how.Now),
		fmt.Sprintf("--no-shutdown-delay=%t", s.how.NoShutdownDelay), s.ID}
	err := background(ctx, s.Target, s.environment, args, nil, func(alloc *api.Allocation) (bool, error) {
		return alloc.DesiredStatus == api.AllocDesiredStatusStop || alloc.ClientTerminalStatus(), nil
	})
	if err != nil {
		return err
	}
	return s.say("allocation %s is being stopped in the background", s.ID)
}

// removeDeadSockets removes an allocation's sockets, the operator's and the tasks', that a killed taskapi has left. It
// finds tasks by their directories, since the state may be lost; a socket with a listener stays.
func removeDeadSockets(t base.Target) error {
	entries, err := os.ReadDir(t.Layout.Alloc(t.ID))
	errs := []error{err, socket.RemoveStale(t.Layout.OperatorSocket(t.ID))}
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, socket.RemoveStale(t.Layout.TaskSocket(t.ID, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// killOrphans kills the running processes of an allocation whose state can't be read.
func (s *stopping) killOrphans(ctx context.Context, why error) error {
	dir := s.Layout.Alloc(s.ID)
	s.warn(why)
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("allocation %s: %w", s.ID, agent.UnwrapPath(err))
	}
	killed, err := allocrunner.KillOrphans(ctx, dir)
	if err != nil {
		return fmt.Errorf("allocation %s: its tasks could not be killed: %w", s.ID, err)
	}
	if err := removeDeadSockets(s.Target); err != nil {
		s.warn(err)
	}
	if killed == 0 {
		return s.say("allocation %s: no process is running", s.ID)
	}
	return s.say("allocation %s could not be stopped gracefully: its tasks were killed (%d %s)", s.ID, killed,
		base.Plural(killed, "process", "processes"))
}

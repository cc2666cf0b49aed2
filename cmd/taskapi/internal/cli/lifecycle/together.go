package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/settings"
)

func (r *request) runTogether(cmd *cobra.Command, waiting context.Context, jobFile string) error {
	parts, err := r.parts(waiting, cmd, jobFile)
	if err != nil {
		return cmp.Or(context.Cause(waiting), err)
	}
	if r.options.Detach {
		return detachAll(waiting, parts, cmd)
	}
	return r.followAll(cmd, parts)
}

// parts returns the parts of all members of the job. Everything is checked that can be: only what fails for one member
// alone is found later. Nothing is started yet.
func (r *request) parts(ctx context.Context, cmd *cobra.Command, jobFile string) ([]*part, error) {
	_, s, err := r.options.Next(settings.Record{}, cmd.Flags(), true, r.environment)
	if err != nil {
		return nil, err
	}
	r.jobFile, r.options.Settings = jobFile, s
	r.flags = givenFlags(cmd, append([]string{"all", "logs", "json", "put-var"}, ofParent...)...)
	if jobFile == "-" {
		if r.text, err = io.ReadAll(r.environment.Stdin); err != nil {
			return nil, fmt.Errorf("job file on standard input: %w", err)
		}
		r.environment.Stdin = strings.NewReader(string(r.text))
	}
	if r.loaded, err = r.options.Read(jobFile, r.environment); err != nil {
		return nil, err
	}
	if interfaces.IsParent(r.loaded.Job) {
		return nil, base.Usagef("%s: job %q starts its children by itself: leave out --all", start.FileName(jobFile),
			*r.loaded.Job.ID)
	}
	groups, err := r.loaded.ChooseAll(jobFile, s, r.environment)
	if err != nil {
		return nil, err
	}
	members, err := membersOf(r.loaded.Job, groups)
	if err == nil && len(members) == 0 {
		err = errors.New("the count of every group is 0: there is nothing to run")
	}
	if err != nil {
		return nil, base.Usagef("%s: %w", start.FileName(jobFile), err)
	}
	var parts []*part
	for _, m := range members {
		p, err := r.partOf(m, cmd.Flags())
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, r.prepare(ctx, parts)
}

// prepare finds the parts that run already, checks the ports of the others, and writes variables.
func (r *request) prepare(ctx context.Context, parts []*part) error {
	first := parts[0]
	if err := first.layout.MakeDir(); err != nil {
		return err
	}
	var err error
	if first.jobLock, err = lockJob(ctx, first.layout, r.loaded.Job); err != nil {
		return err
	}
	running, err := first.layout.RunningOf(ctx, first.alloc.Namespace, first.alloc.JobID)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	others := make([]bool, len(parts)) // that run another version
	held := map[string]bool{}          // groups that have their ports
	version := &api.Job{Version: r.loaded.Job.Version, SubmitTime: new(time.Now().UnixNano())}
	for _, t := range running {
		ended, err := awaitExit(ctx, t)
		if err != nil {
			return err
		}
		if ended {
			continue
		}
		held[t.Alloc.TaskGroup] = true
		i := slices.IndexFunc(parts, func(p *part) bool { return p.allocName == t.Alloc.Name })
		if i < 0 || r.options.Replace {
			continue
		}
		same, err := runsJob(ctx, t, r.loaded.Job)
		switch {
		case errors.Is(err, client.ErrNoAnswer): // it is left running, is ending, or hangs: the start finds out
		case err != nil:
			return fmt.Errorf("allocation %s: %w", t.Alloc.Name, err)
		case t.Alloc.DesiredStatus == api.AllocDesiredStatusStop:
			return parts[i].errRuns(ctx, t.Alloc)
		case !same:
			others[i] = true
		default:
			parts[i].runs, parts[i].alloc, version = true, t.Alloc, t.Alloc.Job
		}
	}
	var labels []string
	for i, p := range parts {
		if others[i] {
			labels = append(labels, p.label())
		}
	}
	if len(labels) > 0 {
		return base.Usagef("%s %s another version of job %q, and nothing was started: '%s JOBFILE' gives all this one; "+
			"--replace stops them and runs them again", strings.Join(labels, ", "),
			base.Plural(len(labels), "runs", "run"), first.alloc.JobID, first.layout.Command("update", "--all"))
	}
	seen := map[string]bool{}
	for _, p := range parts {
		if p.runs {
			continue
		}
		p.numberedAs(version)
		if seen[p.alloc.TaskGroup] {
			continue
		}
		seen[p.alloc.TaskGroup] = true
		if !held[p.alloc.TaskGroup] {
			if err := p.errPorts(); err != nil {
				return err
			}
		}
		said := p.request
		said.environment.Stderr = r.environment.Stderr
		said.warn()
		said.sayOwnUser()
	}
	return first.putVarItems(ctx)
}

// lockJob keeps other commands from starting or updating all allocations of the job, until the file is closed.
func lockJob(ctx context.Context, l base.Layout, job *api.Job) (*os.File, error) {
	lock, err := l.LockName(ctx, *job.Namespace, *job.ID, client.BusyTimeout)
	if errors.Is(err, datadir.ErrNameInUse) {
		err = fmt.Errorf("another command starts or updates the allocations of job %q, and has not ended for %v", *job.ID,
			client.BusyTimeout)
	}
	return lock, err
}

// runsJob reports whether an allocation runs a version of a job.
func runsJob(ctx context.Context, t base.Target, job *api.Job) (bool, error) {
	c := t.Client()
	defer c.Close()
	plan, err := c.Plan(ctx, job)
	return err == nil && (plan.Diff == nil || len(plan.Diff.Fields) == 0), err
}

// detachAll is run --all --detach. It prints the IDs in the order of the job.
func detachAll(ctx context.Context, parts []*part, cmd *cobra.Command) error {
	startAll(ctx, parts, cmd.Flags())
	var printErr error
	for _, p := range parts {
		if p.runs {
			fmt.Fprintf(p.log, "taskapi: %s runs already\n", p.label())
		}
		if p.err == nil || isStartError(p.err) {
			_, err := fmt.Fprintln(p.environment.Stdout, p.alloc.ID)
			printErr = errors.Join(printErr, err)
		}
	}
	each(parts, func(p *part) { p.err = p.settled(ctx, p.err) })
	return errors.Join(report(parts), printErr)
}

type together struct {
	parts  []*part
	labels *follow.Labels
	signs  map[*part]*partSigns

	leave context.CancelFunc
	end   func() // closes over
	log   io.Writer
	begun chan struct{} // closed when the parts are to stop
	over  chan struct{} // closed when no part is followed any more

	mu    sync.Mutex // guards the fields below
	stops bool
	live  int
}

// partSigns says how far a part is.
type partSigns struct {
	launched chan struct{} // closed when its process answers, or has failed
	failed   bool          // valid once it is launched
	asked    chan struct{} // closed when its process has been asked to stop
}

// followAll starts the parts, prints their events until the last has ended, and stops all at a signal.
func (r *request) followAll(cmd *cobra.Command, parts []*part) error {
	manager, err := start.ServiceManager()
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancel(cmd.Context())
	defer leave()
	a := &together{parts: parts, signs: map[*part]*partSigns{}, leave: leave, log: r.log, begun: make(chan struct{}),
		over: make(chan struct{}), live: len(parts)}
	a.end = sync.OnceFunc(func() { close(a.over) })
	var allocs []*api.Allocation
	for _, p := range parts {
		allocs = append(allocs, p.alloc)
		a.signs[p] = &partSigns{launched: make(chan struct{}), asked: make(chan struct{})}
	}
	a.labels = follow.NewLabels(allocs, r.environment)
	stopping, endStops := context.WithCancel(cmd.Context())
	defer endStops()
	defer start.Each(r.starting.HandOver(), a.onSignal(stopping))()
	var all sync.WaitGroup
	all.Go(func() { a.start(ctx, cmd) })
	all.Go(func() { a.notify(ctx, manager) })
	each(parts, func(p *part) {
		if p.err = a.follow(ctx, p); errors.Is(p.err, errNotStarted) {
			p.err = nil // as the signal wanted
		}
	})
	leave()
	all.Wait()
	return report(parts)
}

// start starts the parts, until they are to stop.
func (a *together) start(ctx context.Context, cmd *cobra.Command) {
	starts{
		flags: cmd.Flags(),
		skip: func() bool {
			select {
			case <-a.begun:
				return true
			default:
				return ctx.Err() != nil
			}
		},
		done: func(*part, *api.Allocation) (bool, error) { return true, nil },
		after: func(p *part) {
			a.signs[p].failed = p.err != nil
			close(a.signs[p].launched)
		},
	}.start(ctx, a.parts)
}

// notify tells a service manager when every part has been started, and then sends signs of life.
func (a *together) notify(ctx context.Context, manager agent.ServiceManager) {
	if manager.Send == nil {
		return
	}
	for _, signs := range a.signs {
		select {
		case <-signs.launched:
		case <-ctx.Done():
			return
		}
	}
	_ = manager.Send(fmt.Sprintf("READY=1\nSTATUS=%d allocations of job %s", len(a.parts), a.parts[0].alloc.JobID))
	if manager.Watchdog == 0 {
		return
	}
	tick := time.NewTicker(manager.Watchdog / 3) // one that is lost does no harm
	defer tick.Stop()
	for {
		_ = manager.Send("WATCHDOG=1") // the next one may arrive
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// onSignal returns what a signal does: the first one stops the parts, the second one kills them, and SIGUSR1 leaves
// them running.
func (a *together) onSignal(ctx context.Context) func(syscall.Signal) {
	var first time.Time
	var kind syscall.Signal
	return func(sig syscall.Signal) {
		switch {
		case sig == syscall.SIGUSR1:
			fmt.Fprintf(a.log, "taskapi: the allocations run on: '%s' stops them\n",
				a.parts[0].layout.Command("stop", a.parts[0].alloc.JobID))
			a.leave()
		case kind == 0:
			first, kind = time.Now(), sig
			a.stop(ctx, client.StopOptions{})
		case sig != kind || time.Since(first) >= agent.SameStop:
			a.stop(ctx, client.StopOptions{Now: true})
		}
	}
}

// stop asks the process of each part to stop it. It does not wait.
func (a *together) stop(ctx context.Context, how client.StopOptions) {
	a.mu.Lock()
	again := a.stops
	a.stops = true
	a.mu.Unlock()
	if !again {
		close(a.begun)
	}
	for _, p := range a.parts {
		signs := a.signs[p]
		go func() {
			<-signs.launched
			if !again {
				defer close(signs.asked)
			}
			if signs.failed {
				return
			}
			a.ask(ctx, p, how)
		}()
	}
}

// ask asks the process of a part to stop it, or starts another one that does.
func (a *together) ask(ctx context.Context, p *part, how client.StopOptions) bool {
	s := stopping{Target: p.target(), how: how, detach: true, environment: p.environment}
	s.environment.Stdout = io.Discard
	err := s.run(ctx)
	if err != nil && ctx.Err() == nil {
		s.environment.Warnf("%v", err)
	}
	return err == nil
}

// follow prints the events of a part until it has ended. Errors: it has failed, or its process was killed.
func (a *together) follow(ctx context.Context, p *part) error {
	defer a.done()
	<-a.signs[p].launched // soon, also when ctx has ended
	if ctx.Err() != nil {
		return nil
	}
	if a.signs[p].failed {
		return p.err
	}
	w := p.environment
	w.Stdout = a.labels
	f := &follow.Follower{Target: p.target(), W: w, JSON: p.options.JSON, Labels: a.labels, Whole: !p.runs}
	f.Output = p.options.Output.Wanted(p.environment, p.options.JSON)
	f.Words = !f.Output
	for {
		alloc, err := f.Follow(ctx)
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case isAbandoned(err):
			if !a.awaitStop(ctx, p) {
				return base.ErrSilent
			}
			continue
		case err != nil:
			return err
		}
		f.Printer.Ended(alloc, "")
		if alloc.ClientStatus == api.AllocClientStatusFailed && interfaces.Ended(alloc) {
			return base.ErrSilent
		}
		return nil
	}
}

func isAbandoned(err error) bool {
	_, ok := errors.AsType[*base.AbandonedError](err)
	return ok
}

// awaitStop waits, for a part whose process was killed, until all parts are stopped. It returns false if the others
// have ended before that.
func (a *together) awaitStop(ctx context.Context, p *part) bool {
	select {
	case <-a.begun:
	default:
		fmt.Fprintf(a.log, "taskapi: %s: its taskapi was killed, and its tasks may run on: '%s' resumes it\n",
			p.label(), p.layout.Command("takeover", p.alloc.ID))
		a.done()
		defer a.undone()
	}
	select {
	case <-a.begun:
	case <-a.over:
		return false
	case <-ctx.Done():
		return false
	}
	<-a.signs[p].asked
	return a.ask(ctx, p, client.StopOptions{}) // that process may have been killed after it was asked
}

// done notes that a part is not followed any more, and undone that it is again.
func (a *together) done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.live--; a.live == 0 {
		a.end()
	}
}

func (a *together) undone() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.live++
}

// Package processes starts, signals and waits for the processes of tasks, as children of this program. The keeper is
// that program.
package processes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/launch"
	"taskapi/allocrunner/internal/listeners"
	"taskapi/allocrunner/internal/logs"
	"taskapi/allocrunner/internal/notify"
	"taskapi/allocrunner/internal/proctree"
)

// defaultDrainTime is how long output is still read when a task's process has ended but something keeps its pipe open.
// The runner kills the tree right after the exit, which closes the pipe, so only output of a process that escaped the
// tree is cut off.
const defaultDrainTime = 5 * time.Second

// closeTime bounds how long Close waits for killed processes: only one that is stuck in the kernel takes longer than
// milliseconds.
const closeTime = 10 * time.Second

// Config configures a Local.
type Config struct {
	// Logger is required.
	Logger *slog.Logger

	// Config is that of the processes' trees.
	proctree.Config

	// Dir is the allocation directory, for the sockets of tasks that notify.
	Dir string

	// Shorten is notify.Config's.
	Shorten drivers.Shorten

	// DrainTime is how long output is read after a process's end while something else holds its pipe; 0: five seconds.
	DrainTime time.Duration
}

// Local has the methods of a drivers.Supervisor except Found, for processes that are children of this program. They die
// with it: each root process has SIGKILL as its parent-death signal.
type Local struct {
	cfg       Config
	quit      chan struct{} // closed to end the goroutines of runStarter and trees
	calls     chan func()   // for runStarter
	trees     *proctree.Trees
	listeners *listeners.Set
	execLimit chan struct{}   // one for each Exec under way without Files
	ttys      chan struct{}   // one for each with Files
	starts    sync.WaitGroup  // Start calls under way
	lifetime  context.Context // ends with Close, and so ends starts under way
	end       context.CancelFunc
	wg        sync.WaitGroup

	mu        sync.Mutex // guards all below
	procs     map[string]*process
	busy      map[string]bool // being started
	execs     map[*execution]bool
	execCount uint64 // of all times
	open      bool   // goroutines run
	closed    bool
}

// New makes a Local. It does no I/O and starts nothing: the first Start does.
func New(cfg Config) *Local {
	cfg.DrainTime = cmp.Or(cfg.DrainTime, defaultDrainTime)
	lifetime, end := context.WithCancel(context.Background())
	return &Local{
		cfg:       cfg,
		quit:      make(chan struct{}),
		lifetime:  lifetime,
		end:       end,
		calls:     make(chan func()),
		trees:     proctree.New(cfg.Config),
		listeners: listeners.New(cfg.Logger),
		execLimit: make(chan struct{}, maxExecs),
		ttys:      make(chan struct{}, drivers.MaxInteractive),
		procs:     map[string]*process{},
		busy:      map[string]bool{},
		execs:     map[*execution]bool{},
	}
}

func (l *Local) Start(ctx context.Context, spec drivers.Spec) (drivers.ProcessStatus, error) {
	if err := checkSpec(spec); err != nil {
		return drivers.ProcessStatus{}, fmt.Errorf("start task %q: %w", spec.Task, err)
	}
	old, err := l.reserve(spec.Task)
	if err != nil {
		return drivers.ProcessStatus{}, fmt.Errorf("start task %q: %w", spec.Task, err)
	}
	defer l.starts.Done()
	p, err := l.start(ctx, old, spec)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.busy, spec.Task)
	if p != nil { // even if it was given up and does not die: there must be no second process
		l.procs[spec.Task] = p
	}
	if err != nil {
		return drivers.ProcessStatus{}, fmt.Errorf("start task %q: %w", spec.Task, err)
	}
	return p.status(), nil
}

// reserve makes the caller the only one that starts the task, and returns the task's earlier process, if any.
func (l *Local) reserve(task string) (*process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.procs[task]
	switch {
	case l.closed:
		return nil, drivers.ErrClosed
	case l.busy[task], old != nil && old.running():
		return nil, drivers.ErrRunning
	}
	if !l.open {
		l.open = true
		l.wg.Go(l.runStarter)
		l.wg.Go(func() { l.trees.Run(l.quit) })
	}
	l.busy[task] = true
	l.starts.Add(1)
	return old, nil
}

// start clears the rest of the old process and starts the new one. It returns the new process beside an error if that
// process can't be killed.
func (l *Local) start(ctx context.Context, old *process, spec drivers.Spec) (*process, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.lifetime, func() { cancel(drivers.ErrClosed) })()
	if old != nil {
		ctx, cancel := context.WithTimeout(ctx, closeTime)
		defer cancel()
		if _, err := l.clear(ctx, old); err != nil {
			return nil, fmt.Errorf("kill what the last run left behind: %w", err)
		}
	}
	p := &process{task: spec.Task, uid: spec.User.UID, tty: spec.TTY, turn: make(chan struct{}, 1)}
	files, err := spec.Files, error(nil)
	if len(files) == 0 {
		var sinks []logs.Sink
		if !spec.Logs.Disabled {
			if sinks, err = openLogs(spec, l.cfg.Logger); err != nil {
				return nil, err
			}
		}
		files, err = p.openFiles(spec.User, sinks...)
		defer drivers.CloseFiles(files)
	} else if spec.TTY {
		err = giveTo(files[0], spec.User)
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	var listen []*os.File
	if err == nil {
		if listen, err = l.listeners.Take(spec.Task, spec.Listen); len(listen) > 0 {
			spec.Env = withEnv(spec.Env, listenEnv(spec.Listen)...)
		}
	}
	if err == nil && spec.Notify {
		p.notify, err = notify.Listen(notify.Config{
			Dir: l.cfg.Dir, Task: spec.Task, UID: spec.User.UID, GID: spec.User.GID, Logger: l.cfg.Logger,
			Shorten: l.cfg.Shorten,
		})
	}
	if err != nil {
		p.abandon()
		return nil, err
	}
	if p.notify != nil {
		spec.Env = withEnv(spec.Env, p.notify.Env())
	}
	marker := "" // by which descendants are known that have left both session and cgroup
	if i := slices.IndexFunc(spec.Env, func(e string) bool { return strings.HasPrefix(e, "NOMAD_TASK_NAME=") }); i >= 0 {
		marker = spec.Env[i]
	}
	p.tree = l.trees.Task(spec.Task, marker, spec.Limits)
	err = l.launch(ctx, p, spec, files, listen, func() {
		if p.notify != nil {
			p.notify.Start(p.tree.Has)
		}
		l.wg.Go(func() { l.watch(p) })
	})
	if err != nil && p.proc == nil && p.notify != nil {
		p.notify.Close()
	}
	if err != nil && (p.proc == nil || !p.running()) {
		return nil, err
	}
	return p, err
}

// watch waits for the end of the process, announces it, and then gives its output a bounded time.
func (l *Local) watch(p *process) {
	p.wait()
	late := time.After(l.cfg.DrainTime)
	for _, d := range p.drains {
		select {
		case <-d.Done():
		case <-late:
			l.cfg.Logger.Warn("something that the task left behind holds its output; it is cut off", "task", p.task)
			p.cut()
			<-d.Done()
		}
	}
}

func (l *Local) Wait(ctx context.Context, task string) (interfaces.ExitResult, error) {
	p := l.process(task)
	if p == nil {
		return interfaces.ExitResult{}, fmt.Errorf("wait for task %q: %w", task, drivers.ErrNotRunning)
	}
	select {
	case <-p.tree.Ended():
		return p.exit, nil
	case <-ctx.Done():
		return interfaces.ExitResult{}, fmt.Errorf("wait for task %q: %w", task, ctx.Err())
	}
}

func (l *Local) Signal(_ context.Context, process drivers.ProcessID, sig syscall.Signal) error {
	p := l.process(process.Task)
	if p == nil || !p.is(process) || !p.running() {
		return fmt.Errorf("signal task %q: %w", process.Task, drivers.ErrNotRunning)
	}
	if err := p.signal(sig); err != nil {
		return fmt.Errorf("signal task %q: %w", process.Task, err)
	}
	return nil
}

func (l *Local) Notice(ctx context.Context, process drivers.ProcessID, seen uint64) (drivers.Notice, error) {
	p := l.process(process.Task)
	if p == nil || !p.is(process) || p.notify == nil {
		return drivers.Notice{}, fmt.Errorf("notifications of task %q: %w", process.Task, drivers.ErrNotRunning)
	}
	for {
		if !p.running() {
			return drivers.Notice{}, fmt.Errorf("notifications of task %q: %w", process.Task, drivers.ErrNotRunning)
		}
		notice, changed := p.notify.Current()
		if notice.Seq != seen {
			return notice, nil
		}
		select {
		case <-changed:
		case <-p.tree.Ended():
		case <-ctx.Done():
			return drivers.Notice{}, fmt.Errorf("notifications of task %q: %w", process.Task, ctx.Err())
		}
	}
}

// Sockets returns the sockets that are kept for tasks, with files that the caller closes.
func (l *Local) Sockets() ([]drivers.HeldSocket, []*os.File) { return l.listeners.Sockets() }

// Adopt takes sockets of an earlier Local, but those that it has itself. The files stay the caller's.
func (l *Local) Adopt(sockets []drivers.HeldSocket, files []*os.File) {
	l.listeners.Adopt(sockets, files)
}

func (l *Local) Unlisten(_ context.Context, task string) error {
	l.listeners.Drop(task)
	return nil
}

// withEnv returns an environment with further variables, in place of those that have the same names. A program takes
// the first variable of a name.
func withEnv(env []string, more ...string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.ContainsFunc(more, func(new string) bool { return strings.HasPrefix(new, name+"=") })
	})
	return append(env, more...)
}

// listenEnv returns the variables that say which sockets a process has. The launch puts its own number in the place of
// LISTEN_PID.
func listenEnv(sockets []drivers.Listener) []string {
	names := make([]string, len(sockets))
	for i, l := range sockets {
		names[i] = l.Name
	}
	return []string{fmt.Sprintf("LISTEN_FDS=%d", len(sockets)), "LISTEN_FDNAMES=" + strings.Join(names, ":"),
		launch.PIDEnv}
}

func (l *Local) KillTree(ctx context.Context, process drivers.ProcessID) (int, error) {
	p := l.process(process.Task)
	if p == nil {
		return 0, nil
	}
	if !p.is(process) {
		return 0, fmt.Errorf("kill task %q: %w", process.Task, drivers.ErrNotRunning)
	}
	n, err := l.clear(ctx, p)
	if err != nil {
		return n, fmt.Errorf("kill task %q: %w", process.Task, err)
	}
	return n, nil
}

func (l *Local) List(context.Context) ([]drivers.ProcessStatus, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]drivers.ProcessStatus, 0, len(l.procs))
	for _, p := range l.procs {
		all = append(all, p.status())
	}
	slices.SortFunc(all, func(a, b drivers.ProcessStatus) int { return cmp.Compare(a.Task, b.Task) })
	return all, nil
}

// CgroupDir returns the cgroup above those of all tasks, empty while there is none. If this program is killed, the next
// one finds its processes there.
func (l *Local) CgroupDir() string { return l.trees.CgroupDir() }

// Close may be called twice.
func (l *Local) Close() error {
	l.mu.Lock()
	l.closed = true
	open := l.open
	l.open = false
	l.mu.Unlock()
	if !open {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	l.end()
	l.listeners.Close()
	err := l.clearAll(ctx)
	if waited(ctx, &l.starts) {
		err = l.clearAll(ctx) // including processes that were started meanwhile
	} else {
		err = errors.Join(err, errors.New("a start that hangs in a file system can't be ended"))
	}
	close(l.quit)
	if err == nil && waited(ctx, &l.wg) { // a process that can't be killed would hold its watcher, and us, for ever
		l.trees.Close()
	}
	return err
}

// waited waits for a group until ctx ends, and reports whether it has ended.
func waited(ctx context.Context, group *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		group.Wait()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// clear kills the rest of p's tree, with the programs beside it, and waits until the tree is empty and its output is
// written. It counts the processes that were found alive, without p's first process and those programs.
func (l *Local) clear(ctx context.Context, p *process) (int, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if p.emptied {
		return 0, p.drained(ctx)
	}
	others := func() ([]*proctree.Tree, bool) { return l.execTrees(), l.othersRun(p.task) }
	met := proctree.Found{}
	beside := l.endExecs(p)
	for _, e := range beside { // a program that is being started can't be distinguished from the task's processes yet
		select {
		case <-e.started:
		case <-e.done:
		case <-ctx.Done():
		}
	}
	err := p.tree.Kill(ctx, met, others)
	for _, e := range beside {
		select {
		case <-e.done:
		case <-ctx.Done():
		}
	}
	if err == nil && len(beside) > 0 {
		err = p.tree.Kill(ctx, met, others) // processes that could not be distinguished from them
	}
	if err != nil {
		return len(met), err
	}
	p.emptied = true
	p.tree.Remove()
	return len(met), p.drained(ctx)
}

// KillAll kills all processes of all tasks, whose results say why. Further ones can be started.
func (l *Local) KillAll(ctx context.Context, why string) error {
	l.mu.Lock()
	for _, p := range l.procs { // at once: what follows waits for the output of each
		if p.running() {
			p.killed.Store(&why)
			_ = p.signal(syscall.SIGKILL) // one that has ended meanwhile needs none
		}
	}
	l.mu.Unlock()
	return l.clearAll(ctx)
}

// clearAll kills every task's tree.
func (l *Local) clearAll(ctx context.Context) error {
	l.mu.Lock()
	procs := slices.Collect(maps.Values(l.procs))
	l.mu.Unlock()
	var errs []error
	for _, p := range procs {
		if _, err := l.clear(ctx, p); err != nil {
			errs = append(errs, fmt.Errorf("kill task %q: %w", p.task, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Local) process(task string) *process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.procs[task]
}

// othersRun reports whether the process of another task runs, or is being started.
func (l *Local) othersRun(task string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.busy {
		if name != task {
			return true
		}
	}
	for name, p := range l.procs {
		if name != task && p.running() {
			return true
		}
	}
	return false
}

package processes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/launch"
	"taskapi/allocrunner/internal/logs"
	"taskapi/allocrunner/internal/proctree"
)

// process is one run of one task, or of a program beside it. Its fields are set before it is shared, but for exit,
// which is set before the tree says that it has ended, emptied, which the holder of turn owns, and ending, which
// Local.mu guards.
type process struct {
	task    string
	uid     uint32
	pid     int
	started time.Time
	proc    *os.Process
	tree    *proctree.Tree // of which it is the first
	drains  []*logs.Drain
	tty     bool // its standard input is its controlling terminal

	exit interfaces.ExitResult

	turn    chan struct{} // held by the one who kills the tree
	emptied bool          // nothing of the tree is left
	ending  bool          // its tree is being killed
}

func (p *process) running() bool { return p.tree.Running() }

// is reports whether id names this process.
func (p *process) is(id drivers.ProcessID) bool {
	return p.pid == id.PID && p.started.Equal(id.StartedAt)
}

func (p *process) status() drivers.ProcessStatus {
	s := drivers.ProcessStatus{Task: p.task, UID: p.uid, PID: p.pid, Start: p.tree.StartTicks(), StartedAt: p.started}
	if lack := p.tree.NoCgroup(); lack != nil {
		s.NoCgroup = lack.Error()
	}
	if !p.running() {
		exit := p.exit
		s.Exit = &exit
	}
	return s
}

// files opens /dev/null and what the output goes into, or copies what the caller gives instead. It returns the
// descriptors for the task, which are to be closed once it has them.
func (p *process) files(spec drivers.Spec, logger *slog.Logger) (files []*os.File, err error) {
	if len(spec.Files) > 0 {
		p.tty = spec.TTY
		return givenFiles(spec)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, &drivers.StartError{Reason: "/dev/null can't be opened: mount a /dev", Err: err}
	}
	if spec.Logs.Disabled {
		return []*os.File{null, null, null}, nil
	}
	out, err := p.openLogs(spec, logger)
	if err != nil {
		null.Close()
		return nil, err
	}
	return append([]*os.File{null}, out...), nil
}

// givenFiles returns copies of the files that the caller gives a task.
func givenFiles(spec drivers.Spec) (files []*os.File, err error) {
	for _, f := range spec.Files {
		raw, err := f.SyscallConn()
		if err != nil {
			closeAll(files)
			return nil, &drivers.StartError{Reason: fmt.Sprintf("the task's files: %v", err), Err: err}
		}
		_ = raw.Control(func(fd uintptr) { // what the flags of the file are stays as it is: others share them
			var copied int
			if copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3); err == nil {
				files = append(files, os.NewFile(uintptr(copied), f.Name()))
			}
		})
		if err != nil {
			closeAll(files)
			return nil, &drivers.StartError{Reason: fmt.Sprintf("the task's files can't be copied: %v", err), Err: err}
		}
	}
	if spec.TTY {
		err = giveTo(files[0], spec.User)
	}
	if err != nil {
		closeAll(files)
	}
	return files, err
}

// launch starts the process in its tree, and returns when it has become the program. What the program's files make it
// wait for nobody else waits for: no lock is held, and when ctx ends the process is killed. began is called when there
// is a process, for whose end it sees to it that somebody waits. There is one after an error, too, when it does not
// die.
func (l *Local) launch(ctx context.Context, p *process, spec drivers.Spec, files []*os.File, began func()) error {
	defer closeAll(files)
	conn, err := launch.New()
	if err != nil {
		p.abandon()
		p.tree.Remove()
		return explain(spec, err)
	}
	defer conn.Close()
	p.proc, err = l.starter.start(spec.Task, p.tree, files, conn.Child, p.tty)
	if err != nil {
		p.abandon()
		p.tree.Remove()
		return explain(spec, err)
	}
	closeAll(files)
	p.pid, p.started = p.proc.Pid, time.Now()
	began()
	if spec.OOMScoreAdj != 0 {
		name := "/proc/" + strconv.Itoa(p.pid) + "/oom_score_adj"
		if err := os.WriteFile(name, []byte(strconv.Itoa(spec.OOMScoreAdj)), 0); err != nil {
			l.cfg.Logger.Warn("oom_score_adj can't be set", "task", spec.Task, "error", err)
		}
	}
	if err = conn.Become(ctx, program(spec)); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if p.tree.Kill(ctx, proctree.Found{}, nil) != nil { // ended already, mostly
		return fmt.Errorf("process %d, which was to become %q, does not die (%w): the file system that has it does "+
			"not answer", p.pid, spec.Path, err)
	}
	p.tree.Remove()
	p.abandon()
	return explain(spec, err)
}

// openLogs opens the files of both streams and a pipe before each. It returns the pipes' writing ends, for the task.
func (p *process) openLogs(spec drivers.Spec, logger *slog.Logger) ([]*os.File, error) {
	var rotators []*logs.Rotator
	var ends []*os.File
	fail := func(reason string, err error) ([]*os.File, error) {
		for _, r := range rotators[len(p.drains):] {
			r.Close()
		}
		p.abandon()
		closeAll(ends)
		return nil, &drivers.StartError{Reason: fmt.Sprintf("%s: %v", reason, err), Err: err}
	}
	for _, stream := range []string{"stdout", "stderr"} {
		r, err := logs.Open(logs.Config{
			Dir: spec.Logs.Dir, Name: spec.Task + "." + stream,
			MaxFiles: spec.Logs.MaxFiles, MaxBytes: spec.Logs.MaxFileBytes, Logger: logger,
		})
		if err != nil {
			return fail("the task's logs can't be opened: check the log directory and the logs block", err)
		}
		rotators = append(rotators, r)
	}
	for _, r := range rotators {
		read, write, err := pipe()
		if err != nil {
			return fail("no pipe for the task's output: raise the limit of open files", err)
		}
		p.drains = append(p.drains, logs.StartDrain(read, r))
		ends = append(ends, write)
		if err := giveTo(write, spec.User); err != nil {
			return fail("the task's logs", err)
		}
	}
	return ends, nil
}

// giveTo makes a pipe the user's own, who could not open its own /dev/stdout by name otherwise.
func giveTo(write *os.File, user interfaces.User) error {
	if !needsUser(user) {
		return nil
	}
	if err := write.Chown(int(user.UID), int(user.GID)); err != nil {
		return &drivers.StartError{Reason: fmt.Sprintf("the output can't be given to user %q: %v", user.Name, err),
			Err: err}
	}
	return nil
}

// pipe makes a pipe whose reading end alone is non-blocking: the task's end is an ordinary one.
func pipe() (read, write *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "|0"), os.NewFile(uintptr(fds[1]), "|1"), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// wait waits for the end and records it.
func (p *process) wait() { p.tree.Wait(p.note) }

func (p *process) note(state *os.ProcessState, err error) {
	p.exit = interfaces.ExitResult{At: time.Now(), OOMKilled: p.tree.OOMKilled()}
	if err != nil {
		p.exit.ExitCode, p.exit.Err = -1, err.Error()
		return
	}
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		p.exit.Signal = int(status.Signal())
		p.exit.ExitCode = 128 + p.exit.Signal
	} else {
		p.exit.ExitCode = status.ExitStatus()
	}
}

// signal goes by pidfd, so it never hits a stranger.
func (p *process) signal(sig syscall.Signal) error {
	err := p.proc.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, unix.ESRCH) {
		return drivers.ErrNotRunning
	}
	return err
}

// cut ends the reading of output.
func (p *process) cut() {
	for _, d := range p.drains {
		d.Cut()
	}
}

// abandon ends the reading of the output of a process that never was, and waits for it.
func (p *process) abandon() {
	p.cut()
	for _, d := range p.drains {
		<-d.Done()
	}
}

// drained waits until all output is in the files.
func (p *process) drained(ctx context.Context) error {
	for _, d := range p.drains {
		select {
		case <-d.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// taskMark returns the entry by which descendants are known that have left both session and cgroup.
func taskMark(spec drivers.Spec) string {
	for _, entry := range spec.Env {
		if strings.HasPrefix(entry, "NOMAD_TASK_NAME=") {
			return entry
		}
	}
	return ""
}

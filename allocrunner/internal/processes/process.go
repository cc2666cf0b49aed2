package processes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/launch"
	"taskapi/allocrunner/internal/logs"
	"taskapi/allocrunner/internal/notify"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/proc"
)

// process is one run of one task, or of a program beside it. Its fields are set before it is shared, with these
// exceptions: exit is set before the tree reports its end, killed is atomic, the holder of turn owns emptied, and
// Local.mu guards ending.
type process struct {
	task    string
	uid     uint32
	pid     int
	started time.Time
	proc    *os.Process
	tree    *proctree.Tree // of which it is the first
	drains  []*logs.Drain
	tty     bool           // its standard input is its controlling terminal
	notify  *notify.Socket // nil for none

	exit   interfaces.ExitResult
	killed atomic.Pointer[string] // why KillAll has killed it; nil before

	turn    chan struct{} // held while the tree is killed
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
	if lack := p.tree.Unlimited(); lack != nil {
		s.Unlimited = lack.Error()
	}
	if p.notify != nil {
		n, _ := p.notify.Current()
		s.Notice = &n
	}
	if !p.running() {
		exit := p.exit
		s.Exit = &exit
	}
	return s
}

// openFiles opens /dev/null, and a pipe into each of the sinks; the last file is also that of the streams without a
// sink. It returns the program's standard files, which are the caller's to close, also after an error. The sinks are
// not.
func (p *process) openFiles(user interfaces.User, sinks ...logs.Sink) (files []*os.File, err error) {
	defer func() {
		for _, sink := range sinks[len(p.drains):] { // which no drain closes
			sink.Close()
		}
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, &drivers.StartError{Reason: "/dev/null can't be opened: mount a /dev", Err: err}
	}
	files = []*os.File{null}
	for _, sink := range sinks {
		read, write, err := os.Pipe()
		if err != nil {
			return files, &drivers.StartError{Reason: fmt.Sprintf("no pipe for the program's output: raise the limit of "+
				"open files: %v", err), Err: err}
		}
		p.drains = append(p.drains, logs.StartDrain(read, sink))
		files = append(files, write)
		if err := giveTo(write, user); err != nil {
			return files, err
		}
	}
	for len(files) < 3 {
		files = append(files, files[len(files)-1])
	}
	return files, nil
}

// launch starts the process in its tree, and returns when it has executed the program. If the program's files make it
// wait, nobody else waits: no lock is held, and the process is killed when ctx ends. launch calls began when there is a
// process; began must make somebody wait for its end. After an error there may still be a process, if it does not die.
func (l *Local) launch(
	ctx context.Context, p *process, spec drivers.Spec, files, listen []*os.File, began func(),
) error {
	run := program(spec, files, p.tty)
	run.Listen = listen
	process, err := launch.New(run)
	if err == nil {
		defer process.Close()
		p.proc, err = l.startProcess(p.tree, process)
	}
	if err != nil {
		p.abandon()
		p.tree.Remove()
		return explain(spec, err)
	}
	p.pid, p.started = p.proc.Pid, time.Now()
	began()
	if err = process.Await(ctx); err == nil {
		l.warnOfRefused(p, spec)
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

// warnOfRefused warns when the system has refused the process something. The process may have ended.
func (l *Local) warnOfRefused(p *process, spec drivers.Spec) {
	if spec.OOMScoreAdj != 0 {
		has, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.pid))
		if score := strings.TrimSpace(string(has)); score != "" && score != strconv.Itoa(spec.OOMScoreAdj) {
			l.cfg.Logger.Warn("oom_score_adj can't be set", "task", spec.Task, "wanted", spec.OOMScoreAdj, "has", score)
		}
	}
	if spec.NetBindService {
		has := proc.Value(fmt.Sprintf("/proc/%d/status", p.pid), "CapEff")
		if set, err := strconv.ParseUint(has, 16, 64); err == nil && set&(1<<unix.CAP_NET_BIND_SERVICE) == 0 {
			l.cfg.Logger.Warn("the task can't bind the group's privileged port: the system refuses to give it "+
				"CAP_NET_BIND_SERVICE", "task", spec.Task)
		}
	}
}

// openLogs opens the files of both streams.
func openLogs(spec drivers.Spec, logger *slog.Logger) (files []logs.Sink, err error) {
	for _, stream := range []string{"stdout", "stderr"} {
		r, err := logs.Open(logs.Config{
			Dir: spec.Logs.Dir, Name: spec.Task + "." + stream,
			MaxFiles: spec.Logs.MaxFiles, MaxBytes: spec.Logs.MaxFileBytes, Logger: logger,
		})
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, &drivers.StartError{Reason: fmt.Sprintf("the task's logs can't be opened: check the log directory "+
				"and the logs block: %v", err), Err: err}
		}
		files = append(files, r)
	}
	return files, nil
}

// giveTo gives a pipe to the user, whose program could not open its own /dev/stdout by name otherwise.
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

// wait waits for the end and records it.
func (p *process) wait() { p.tree.Wait(p.note) }

// note records the end, before it is announced. The next process of the task then takes the name of its socket.
func (p *process) note(state *os.ProcessState, err error) {
	if p.notify != nil {
		p.notify.Close()
	}
	p.exit = interfaces.ExitResult{At: time.Now(), OOMKilled: p.tree.OOMKilled()}
	if err != nil {
		p.exit.ExitCode, p.exit.Err = -1, err.Error()
		return
	}
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		p.exit.Signal = int(status.Signal())
		p.exit.ExitCode = 128 + p.exit.Signal
		if why := p.killed.Load(); why != nil && status.Signal() == syscall.SIGKILL {
			p.exit.Killed = *why
		}
	} else {
		p.exit.ExitCode = status.ExitStatus()
	}
}

// signal uses a pidfd, so it never reaches another process.
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

// abandon ends the reading of the output of a process that was never started, and waits for that.
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

package lifecycle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/templates"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/internal/privatefile"
	"taskapi/internal/ptr"
	"taskapi/internal/safedir"
)

// maxLog is the size at which that log starts over: tasks that restart for ever must not fill the disk.
const maxLog = 4 << 20

// boundedLogs are standard output and error of a process in the background, which go to that log.
func boundedLogs(w base.Environment) (stdout, stderr io.Writer) {
	return privatefile.Log{Writer: w.Stdout, Max: maxLog}, privatefile.Log{Writer: w.Stderr, Max: maxLog}
}

// ofParent are the flags that only the process in the foreground acts on.
var ofParent = []string{"detach", "alloc-id", "wait", "wait-timeout"}

// detach runs the allocation in a background process, and prints its ID when its tasks have started, or wait for what a
// template reads, or when one of them has failed to start. That is an error, but the allocation continues under its
// restart policy.
func (r *request) detach(ctx context.Context) error {
	if err := r.makeDir(); err != nil {
		return err
	}
	if err := r.makeFree(ctx, ctx); err != nil {
		return err
	}
	r.sayOwnUser()
	err := r.launch(ctx, r.started)
	if err != nil && !isStartError(err) {
		return err
	}
	_, printErr := fmt.Fprintln(r.environment.Stdout, r.alloc.ID)
	return errors.Join(r.settled(ctx, err), printErr)
}

// launch runs the allocation in a background process, and returns when done is satisfied.
func (r *request) launch(ctx context.Context, done func(*api.Allocation) (bool, error)) error {
	flags, jobFile, w := r.flags, r.jobFile, r.environment
	if r.before != nil && !allocrunner.TasksRunning(r.layout.Alloc(r.alloc.ID)) {
		r.lost = r.before
	}
	if r.dispatch != nil { // the process in the background gets the child
		job, err := json.Marshal(map[string]*api.Job{"Job": r.alloc.Job})
		if err != nil {
			return fmt.Errorf("job %q: %w", r.alloc.JobID, err)
		}
		flags, jobFile, w.Stdin = start.WithoutDispatch(flags), "-", bytes.NewReader(job)
	}
	args := slices.Concat([]string{"run"}, flags, []string{fmt.Sprintf("--named=%t", r.name != nil),
		fmt.Sprintf("--job-version=%d", ptr.Deref(r.alloc.Job.Version)),
		fmt.Sprintf("--submit-time=%d", ptr.Deref(r.alloc.Job.SubmitTime)), "--alloc-id=" + r.alloc.ID, "--", jobFile})
	if _, err := makeAllocDir(r.target()); err != nil {
		return err
	}
	if r.options.Detach {
		defer start.Started.Begin(ctx, r.target(), w.Stderr)()
	}
	return background(ctx, r.target(), w, args, r.name, done)
}

// settled waits for what --wait names, and says more about a start that has failed.
func (r *request) settled(ctx context.Context, err error) error {
	failed, ok := errors.AsType[*startError](err)
	switch {
	case ok:
		return start.WithOutput(r.layout, failed.alloc, err)
	case err == nil && r.options.Until.What != "":
		return r.options.Until.Await(ctx, &follow.Follower{Target: r.target(), Quiet: true}, r.environment.Stderr)
	}
	return err
}

func isStartError(err error) bool {
	_, ok := errors.AsType[*startError](err)
	return ok
}

// started is tasksStarted. If --replace stops an allocation first, the tasks of the allocation that follows it count.
func (r *request) started(alloc *api.Allocation) (bool, error) {
	if r.options.Replace && r.before != nil && alloc.CreateTime == r.before.CreateTime {
		return false, nil
	}
	if r.lost != nil && alloc.CreateTime == r.lost.CreateTime {
		return tasksStarted(alloc, r.lost.TaskStates)
	}
	return tasksStarted(alloc, nil)
}

// givenFlags returns the flags of a command as they were given, without some.
func givenFlags(cmd *cobra.Command, without ...string) []string {
	var args []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains(without, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}

// startError is a task of an allocation that has failed to start.
type startError struct {
	alloc  *api.Allocation
	task   string
	reason *api.TaskEvent
}

func (e *startError) Error() string {
	goesOn := "continues under its restart policy"
	switch {
	case e.reason.FailsTask || e.reason.Type == api.TaskFailedValidation:
		goesOn = "fails: the task is not started again"
	case interfaces.Ended(e.alloc):
		goesOn = "has ended: it is " + e.alloc.ClientStatus
	}
	return fmt.Sprintf("task %q failed to start: %s\nallocation %s %s", e.task,
		linewriter.OneLine(e.reason.DisplayMessage), e.alloc.ID, goesOn)
}

// tasksStarted reports whether every main task of an allocation has started, or waits for what a template reads, or
// whether a task is paused, for which others may wait. A task that was lost in the given state has to start again.
// Errors: *startError for the first task, main or not, that has failed to start.
func tasksStarted(alloc *api.Allocation, lost map[string]*api.TaskState) (bool, error) {
	if interfaces.IsParent(alloc.Job) { // it runs no task
		return alloc.ClientStatus == api.AllocClientStatusRunning, nil
	}
	all, paused := true, false
	for _, task := range alloc.GetTaskGroup().Tasks {
		paused = paused || interfaces.ShownSchedule(alloc.TaskStates[task.Name]).Pauses()
		started, failure := startOf(alloc.TaskStates[task.Name], lost[task.Name])
		if failure != nil {
			return false, &startError{alloc, task.Name, failure}
		}
		all = all && (started || task.Lifecycle != nil)
	}
	return all || paused, nil
}

// startOf reports whether a task has ever started, or else how its latest attempt has failed. Of a task that was lost,
// only what came later counts, unless it had ended before.
func startOf(state, lost *api.TaskState) (started bool, failure *api.TaskEvent) {
	if state == nil {
		return false, nil
	}
	if lost != nil && lost.State == "dead" {
		return true, nil
	}
	for _, e := range state.Events {
		if lost != nil && (e.Type == api.TaskTerminated || slices.ContainsFunc(lost.Events, func(old *api.TaskEvent) bool {
			return old.Time == e.Time && old.Type == e.Type
		})) {
			continue
		}
		switch e.Type {
		case api.TaskStarted, api.TaskTerminated: // of the events of a long life the latest are kept
			return true, nil
		case templates.Waiting:
			return true, nil // somebody else must write a value first
		case api.TaskDriverFailure, api.TaskFailedValidation, api.TaskSetupFailure:
			failure = e
		case api.TaskKilling:
			if e.FailsTask { // a template has failed
				failure = e
			}
		}
	}
	if len(state.Events) == 1 { // nothing of the allocation begins: its taskapi ends and says why
		failure = nil
	}
	return state.State == "running" && lost == nil, failure
}

// argsFD is the descriptor by which a background process gets its arguments. Everybody on the machine can read a
// command line, and the arguments may contain secrets: values of variables.
const argsFD = 3

// handArgs writes a command's arguments to a file for a process in the background. It returns the file and the
// arguments that the process shows.
func handArgs(args []string) (file *os.File, visible []string, err error) {
	encoded, err := json.Marshal(args)
	if err != nil {
		return nil, nil, err
	}
	fd, err := unix.MemfdCreate("arguments", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	file = os.NewFile(uintptr(fd), "arguments")
	if _, err := file.WriteAt(encoded, 0); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, []string{args[0], detachedFlag}, nil
}

// HandedArgs returns the arguments of this process: those on its command line, or those that handArgs has written for
// it.
func HandedArgs(args []string) ([]string, error) {
	if len(args) != 2 || args[1] != detachedFlag {
		return args, nil
	}
	unix.CloseOnExec(argsFD)
	unix.CloseOnExec(nameFD) // if there is one
	file := os.NewFile(argsFD, "arguments")
	defer file.Close()
	var handed []string
	if err := json.NewDecoder(file).Decode(&handed); err != nil || len(handed) == 0 || handed[0] != args[0] {
		return nil, fmt.Errorf("%s is only for processes that --detach starts", detachedFlag)
	}
	return slices.Insert(handed, 1, detachedFlag), nil
}

// detachedFlag marks a process that --detach has started.
const detachedFlag = "--detached"

// background executes this program again, in a session of its own, without a terminal and with an allocation's log as
// its output, and returns when done is satisfied. It prints the process's warnings until then or, if the process exits
// before that, its output, and then the command exits with its code. The process inherits name, the lock on the
// allocation's name, which is then closed here; nil for none. Errors: *datadir.RemovedError without the allocation's
// directory.
func background(ctx context.Context, t base.Target, w base.Environment, args []string, name *os.File,
	done func(*api.Allocation) (bool, error)) error {
	dir := t.Layout.Alloc(t.ID)
	log, err := privatefile.Open(filepath.Join(dir, start.LogName), os.O_CREATE|os.O_RDWR|os.O_APPEND)
	if errors.Is(err, fs.ErrNotExist) {
		return &datadir.RemovedError{ID: t.ID}
	}
	if err != nil {
		return fmt.Errorf("log of allocation %s: %w", t.ID, err)
	}
	defer log.Close()
	before, _ := log.Seek(0, io.SeekEnd) // of a regular file
	handed, visible, err := handArgs(args)
	if err != nil {
		return fmt.Errorf("arguments for taskapi in the background: %w", err)
	}
	defer handed.Close()
	cmd := exec.Command("/proc/self/exe", visible...) // this very program, also when its file has been replaced
	cmd.Args[0] = "taskapi"
	cmd.ExtraFiles = []*os.File{handed} // argsFD
	if name != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, name) // nameFD
	}
	cmd.Env = w.Env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if args[len(args)-1] == "-" {
		cmd.Stdin = struct{ io.Reader }{w.Stdin} // a pipe, which ends with the input
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start taskapi in the background: %w", err)
	}
	if name != nil {
		_ = name.Close() // nothing was written
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the process, or this program
	if err := awaitStart(ctx, t, cmd.Process.Pid, ended, done); err != nil {
		if isStartError(err) {
			return err // it says everything
		}
		if size, _ := log.Seek(0, io.SeekEnd); size == before && base.IsSilent(err) {
			return errors.Join(saidNothing(log, w.Stderr), err)
		}
		return errors.Join(said(log, before, w.Stderr), err)
	}
	return start.Warnings(io.NewSectionReader(log, before, maxLog), w.Stderr)
}

func makeAllocDir(t base.Target) (string, error) {
	dir := t.Layout.Alloc(t.ID)
	if err := safedir.MakePassable(dir); err != nil {
		return "", fmt.Errorf("allocation directory %s can't be made: %w", dir, agent.UnwrapPath(err))
	}
	return dir, nil
}

// awaitStart waits until a process runs the allocation and done is satisfied, or fails. If the process exits before
// that, the error has its exit code, unless its allocation has started and ended in the meantime. When ctx ends, it
// waits for at most client.BusyTimeout more until the process runs the allocation: who then stops the job finds it.
func awaitStart(ctx context.Context, t base.Target, pid int, exited <-chan error,
	done func(*api.Allocation) (bool, error)) error {
	c := t.Client()
	defer c.Close()
	var index uint64
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(client.BusyTimeout, cancel) })()
	over := late.Done()
	for {
		if c.ServedBy(late, pid) { // and not by the process that it replaces
			over = ctx.Done()
			alloc, next, err := c.Changed(ctx, index)
			if err == nil {
				if is, err := done(alloc); is || err != nil {
					return err
				}
				index = next
			}
			if client.Refused(err) {
				if found := c.Locate(ctx, client.Brief); found.Holder == client.Refusing {
					return t.ErrUnserved(found)
				}
			}
		}
		select {
		case err := <-exited:
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
				err = base.ExitError{Code: exit.ExitCode()}
			} else if err != nil {
				err = fmt.Errorf("taskapi in the background: %w", err)
			}
			if base.ExitCode(err) == base.ExitUsage { // what is there is from before
				return err
			}
			if found := c.Locate(ctx, client.Brief); found.Holder == client.Ended {
				if is, err := done(found.Alloc); is || err != nil {
					return err
				}
			}
			return err
		case <-over:
			return fmt.Errorf("allocation %s is still starting in the background; this command waits no longer; '%s' stops it",
				t.ID, t.Layout.Command("stop", t.ID))
		case <-time.After(client.Pause):
		}
	}
}

// maxSaid is how much of a log is repeated when a start fails, in bytes: an error, and some lines before it.
const maxSaid = 4 << 10

// saidNothing says that a process has failed and could not write why to its log. It removes an empty log, and the
// directory, if that has nothing else.
func saidNothing(log *os.File, out io.Writer) error {
	if is, err := log.Stat(); err == nil && is.Size() == 0 && os.Remove(log.Name()) == nil {
		_ = os.Remove(filepath.Dir(log.Name())) // the allocation may have begun
	}
	_, err := fmt.Fprintf(out, "taskapi: the process in the background has failed and could not write the reason to %s; "+
		"make room on that file system, or choose another --data-dir\n", log.Name())
	return err
}

// said prints the part of a log after a position.
func said(log *os.File, since int64, out io.Writer) error {
	size, err := log.Seek(0, io.SeekEnd)
	if err == nil {
		since = max(since, size-maxSaid)
		_, err = io.Copy(out, io.NewSectionReader(log, since, size-since))
	}
	return err
}

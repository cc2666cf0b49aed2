package machine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/handlers/apierror"
	"taskapi/internal/ptr"
)

// exitUsage is the exit code of a command that has changed nothing, because its arguments or its job file are wrong.
const exitUsage = 2

// judgeTime is how long a registration waits for its command, which first checks everything.
const judgeTime = 5 * time.Second

// maxSaid bounds how much of a command's output is kept.
const maxSaid = 16 << 10

// commandError is a command of this program that has failed.
type commandError struct {
	code  int
	words string
}

func (e *commandError) Error() string { return e.words }

// command runs a command of this program to its end. The command writes to a file in memory, not to a pipe: when this
// process is killed, a broken pipe would end the command.
func (m *Machine) command(ctx context.Context, stdin []byte, args ...string) error {
	fd, err := unix.MemfdCreate("stderr", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("taskapi %s: %w", args[0], err)
	}
	stderr := os.NewFile(uintptr(fd), "stderr")
	defer stderr.Close()
	cmd := m.newCommand(ctx, args...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), stderr
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err
	}
	said, _ := io.ReadAll(io.NewSectionReader(stderr, 0, maxSaid)) // from memory
	words := strings.TrimSpace(strings.ReplaceAll(string(said), "taskapi: ", ""))
	if words == "" {
		words = "taskapi " + args[0] + ": " + exit.Error()
	}
	return &commandError{exit.ExitCode(), words}
}

func (m *Machine) newCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...) // this very program, also when its file has been replaced
	cmd.Args[0], cmd.Env = "taskapi", m.cfg.Environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to this process must not reach the command
	return cmd
}

// Register runs 'taskapi run', or 'taskapi update' when an allocation of the job runs. The registrations of a job are
// carried out one after the other.
func (m *Machine) Register(
	ctx context.Context, job *api.Job, allowed func([]*api.Allocation) error,
) (<-chan error, error) {
	text, err := json.Marshal(map[string]*api.Job{"Job": job})
	if err != nil {
		return nil, fmt.Errorf("job %q: %w", *job.ID, err)
	}
	key := ptr.Deref(job.Namespace) + "/" + *job.ID // no job's ID has a slash
	done := make(chan struct{})
	m.mu.Lock()
	before := m.registering[key]
	m.registering[key] = done
	m.mu.Unlock()
	result := make(chan error, 1)
	go func() { // ends with the command, also when the client has gone
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if close(done); m.registering[key] == done {
				delete(m.registering, key)
			}
		}()
		if before != nil {
			<-before
		}
		err := m.carryOut(context.WithoutCancel(ctx), job, text, allowed)
		m.settle(job)
		result <- err
	}()
	judged := time.NewTimer(judgeTime)
	defer judged.Stop()
	select {
	case err := <-result:
		if known, ok := errors.AsType[*apierror.Error](err); ok {
			return nil, known
		}
		result <- err
	case <-judged.C:
	}
	return result, nil
}

// carryOut runs the command of a registration. Errors: *apierror.Error, and nothing has been changed; others.
func (m *Machine) carryOut(
	ctx context.Context, job *api.Job, text []byte, allowed func([]*api.Allocation) error,
) error {
	all, err := m.awaitEnds(ctx, job)
	if err != nil {
		return err
	}
	if err := allowed(all); err != nil {
		return err
	}
	if err := m.AsStrict(all, job); err != nil {
		return err
	}
	args := []string{"update", "--replace"}
	starts := len(all) == 0 || all[0].ClientTerminalStatus()
	if starts {
		args = append([]string{"run", "--detach"}, m.cfg.RunFlags...)
	}
	if !interfaces.IsParent(job) {
		args = append(args, "--all")
	}
	err = m.command(ctx, text, append(args, "--data-dir="+string(m.cfg.Dir), "-")...)
	if failed, ok := errors.AsType[*commandError](err); ok && failed.code == exitUsage {
		return apierror.New(apierror.Invalid, failed.words)
	}
	if err != nil && starts { // a full disk, perhaps
		_ = m.catchUpWithin(ctx, client.Brief) // OfJob fails, too
		now, unread := m.OfJob(ctx, ptr.Deref(job.Namespace), *job.ID)
		if unread == nil && len(now) == len(all) {
			return apierror.New(apierror.Unavailable, err.Error()).Because(err)
		}
	}
	return err
}

// AsStrict refuses a job for running allocations whose settings give its tasks more than this process's settings. New
// processes of an allocation, and allocations that an update adds, have the settings of those that run.
func (m *Machine) AsStrict(all []*api.Allocation, job *api.Job) error {
	for _, alloc := range all {
		if alloc.ClientTerminalStatus() {
			continue
		}
		laxer, err := m.laxer(alloc.ID, job)
		if err != nil {
			return apierror.New(apierror.Unavailable, fmt.Sprintf("the settings of allocation %s can't be read", alloc.ID)).
				Because(err)
		}
		if laxer != "" {
			return apierror.New(apierror.Conflict, fmt.Sprintf("allocation %s was started with a laxer setting %s than the "+
				"agent's, and the job would have it, too: stop the job, and register it again", alloc.ID, laxer))
		}
	}
	return nil
}

// laxer returns the name of a setting of an allocation that gives a job's tasks more than this process's settings;
// empty for none.
func (m *Machine) laxer(id string, job *api.Job) (string, error) {
	record, err := settings.Read(m.cfg.Dir.Alloc(id))
	if err != nil {
		return "", err
	}
	own, err := record.Settings()
	if err != nil {
		return "", err
	}
	return settings.Laxer(own, m.cfg.Settings, job)
}

// awaitEnds returns the allocations of a job once none is being stopped. An ending allocation takes no other version of
// the job, and keeps its name until it has ended.
func (m *Machine) awaitEnds(ctx context.Context, job *api.Job) ([]*api.Allocation, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.self.ctx, cancel)()
	for first := true; ; first = false {
		index := m.Index()
		all, err := m.OfJob(ctx, ptr.Deref(job.Namespace), *job.ID)
		if err != nil {
			return nil, err
		}
		ends := false
		for _, alloc := range all {
			if alloc.ClientTerminalStatus() {
				break
			}
			if first { // a stop that has just begun may not be known yet
				alloc = m.ask(ctx, alloc)
			}
			ends = ends || alloc.DesiredStatus == api.AllocDesiredStatusStop
		}
		if !ends {
			return all, nil
		}
		quiet, end := context.WithTimeout(ctx, resumeGrace)
		m.Wait(quiet, index)
		overdue := quiet.Err() != nil
		end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if overdue {
			if err := m.endStops(ctx, all); err != nil {
				return nil, err
			}
		}
	}
}

// endStops goes on with the stops of allocations whose taskapi has exited.
func (m *Machine) endStops(ctx context.Context, all []*api.Allocation) error {
	for _, alloc := range all {
		if alloc.ClientTerminalStatus() || alloc.DesiredStatus != api.AllocDesiredStatusStop ||
			m.locate(ctx, alloc.ID).Holder != client.Nobody {
			continue
		}
		err := m.command(ctx, nil, "stop", "--detach", "--data-dir="+string(m.cfg.Dir), alloc.ID)
		if err != nil {
			return fmt.Errorf("allocation %s is being stopped, and no taskapi runs it: %w", alloc.ID, err)
		}
	}
	return nil
}

// ask returns an allocation as its process has it now or, if that has exited, as it was saved.
func (m *Machine) ask(ctx context.Context, alloc *api.Allocation) *api.Allocation {
	c := client.New(m.cfg.Dir, alloc.ID)
	defer c.Close()
	now, _, err := c.Allocation(ctx)
	if err != nil {
		return cmp.Or(c.Locate(ctx, client.Timeouts{}).Alloc, alloc)
	}
	m.set(alloc.ID, now, false)
	return now
}

// settleTime bounds how long the end of a registration waits until this process has seen the command's changes.
const settleTime = time.Second

// settle reads a job's running allocations again.
func (m *Machine) settle(job *api.Job) {
	ctx, cancel := context.WithTimeout(m.self.ctx, settleTime)
	defer cancel()
	all, err := m.OfJob(ctx, ptr.Deref(job.Namespace), *job.ID)
	if err != nil {
		return
	}
	for _, alloc := range all {
		if !alloc.ClientTerminalStatus() {
			m.ask(ctx, alloc)
		}
	}
}

// Stop begins to stop allocations by their processes, and runs 'taskapi stop' for those without one.
func (m *Machine) Stop(ctx context.Context, all []*api.Allocation, noShutdownDelay, purge bool) error {
	var left, ids []string
	for _, alloc := range all {
		ids = append(ids, alloc.ID)
		if alloc.ClientTerminalStatus() {
			continue
		}
		resp, err := m.Ask(ctx, alloc.ID, &http.Request{Method: http.MethodPut, Header: http.Header{}, URL: &url.URL{
			Path:     "/v1/allocation/" + alloc.ID + "/stop",
			RawQuery: fmt.Sprintf("no_shutdown_delay=%t", noShutdownDelay),
		}})
		if err != nil {
			left = append(left, alloc.ID)
			continue
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxSaid)) // for the next request
		resp.Body.Close()
	}
	data := "--data-dir=" + string(m.cfg.Dir)
	if len(left) > 0 {
		if err := m.command(ctx, nil, slices.Concat([]string{"stop", "--detach", data}, left)...); err != nil {
			return apierror.New(apierror.Unavailable, err.Error()).Because(err)
		}
	}
	if purge {
		return m.purge(context.WithoutCancel(ctx), ids)
	}
	return nil
}

// purge begins to remove allocations when they have ended, in a process that outlives this one.
func (m *Machine) purge(ctx context.Context, ids []string) error {
	args := slices.Concat([]string{"stop", "--purge", "--data-dir=" + string(m.cfg.Dir)}, ids)
	cmd := m.newCommand(ctx, args...) // without output, which would end it when this process has ended
	if err := cmd.Start(); err != nil {
		return apierror.New(apierror.Unavailable, err.Error()).Because(err)
	}
	go func() { // ends when the allocations have ended
		if err := cmd.Wait(); err != nil {
			m.cfg.Logger.Warn("allocations of a purged job are left: 'taskapi gc' removes them", "error", err)
		}
	}()
	return nil
}

// resume runs 'taskapi takeover' for an allocation whose taskapi has exited.
func (m *Machine) resume(ctx context.Context, id, name string) {
	m.cfg.Logger.Info("resuming an allocation whose taskapi has exited", "alloc", id, "name", name)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := m.command(ctx, nil, "takeover", "--data-dir="+string(m.cfg.Dir), id); err != nil {
		m.cfg.Logger.Warn("an allocation whose taskapi has exited could not be resumed", "alloc", id, "name", name,
			"error", err)
	}
}

package machine

import (
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

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/handlers/apierror"
	"taskapi/internal/ptr"
	"taskapi/internal/slice"
	"taskapi/internal/wake"
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

// command runs a command of this program to its end. The command reads from a file in memory and writes to another one,
// not to pipes: when this process is killed, the command still gets all of its input, and no broken pipe ends it.
func (m *Machine) command(ctx context.Context, stdin []byte, args ...string) error {
	return m.commandUntil(ctx, context.Background(), stdin, args...)
}

// commandUntil is command, but asks the command to end when the context stop ends, and then waits for its end.
func (m *Machine) commandUntil(ctx, stop context.Context, stdin []byte, args ...string) error {
	input, err := inMemory("stdin", stdin)
	if err != nil {
		return fmt.Errorf("taskapi %s: %w", args[0], err)
	}
	defer input.Close()
	stderr, err := inMemory("stderr", nil)
	if err != nil {
		return fmt.Errorf("taskapi %s: %w", args[0], err)
	}
	defer stderr.Close()
	cmd := m.newCommand(ctx, args...)
	cmd.Stdin, cmd.Stderr = input, stderr
	if err = cmd.Start(); err == nil {
		defer context.AfterFunc(stop, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })() // it may have ended
		err = cmd.Wait()
	}
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

// inMemory returns a file in memory with a content, to be read from its beginning.
func inMemory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err := file.WriteAt(content, 0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (m *Machine) newCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...) // this very program, also when its file has been replaced
	cmd.Args[0], cmd.Env = "taskapi", m.cfg.Environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to this process must not reach the command
	return cmd
}

// retryTime is when a job that can't be registered now may be registered. Nobody knows when the work that is under way
// ends.
const retryTime = 2 * time.Second

// errUnderWay refuses a registration while another one of the job is carried out.
func errUnderWay(job string) error {
	err := apierror.New(apierror.UnderWay, job)
	err.RetryAfter = retryTime
	return err
}

// registration is one that is being carried out.
type registration struct {
	stop  context.CancelFunc // begins no more work of it
	ended chan struct{}      // closed when all that it has begun can be found
}

// jobKey returns the key of a job. No namespace has a slash.
func jobKey(namespace, job string) string { return namespace + "/" + job }

// beginRegistration keeps other registrations of a job away until end is called. Errors: errUnderWay.
func (m *Machine) beginRegistration(job *api.Job) (stop context.Context, end func(), err error) {
	key := jobKey(ptr.Deref(job.Namespace), *job.ID)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.registering[key] != nil || m.stopping[key] > 0 {
		return nil, nil, errUnderWay(*job.ID)
	}
	stop, cancel := context.WithCancel(context.Background())
	r := &registration{stop: cancel, ended: make(chan struct{})}
	m.registering[key] = r
	return stop, func() {
		cancel()
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.registering, key)
		close(r.ended)
	}, nil
}

// Register runs 'taskapi run', or 'taskapi update' when an allocation of the job runs. While that is under way, it
// refuses another registration of the job, so that none which has been answered waits in memory. The commands outlive
// this process.
func (m *Machine) Register(
	ctx context.Context, job *api.Job, allowed func([]*api.Allocation) error,
) (<-chan error, error) {
	text, err := json.Marshal(map[string]*api.Job{"Job": job})
	if err != nil {
		return nil, fmt.Errorf("job %q: %w", *job.ID, err)
	}
	stop, end, err := m.beginRegistration(job)
	if err != nil {
		return nil, err
	}
	args, before, err := m.prepare(ctx, stop, job, allowed)
	if err != nil {
		end()
		return nil, err
	}
	result := make(chan error, 1)
	go func() { // ends with the command, also when the client has gone
		err := m.carryOut(context.WithoutCancel(ctx), stop, job, text, args, before)
		m.settle(job)
		end()
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

// prepare returns the arguments of the command that carries a registration out, and the job's allocations before it.
// Errors: *apierror.Error, and nothing has been changed; others.
func (m *Machine) prepare(ctx, stop context.Context, job *api.Job, allowed func([]*api.Allocation) error) (
	args []string, all []*api.Allocation, err error,
) {
	ctx, cancel := context.WithTimeoutCause(ctx, endTime, errUnderWay(*job.ID))
	defer cancel()
	defer context.AfterFunc(stop, cancel)()
	if all, err = m.awaitEnds(ctx, job); err != nil {
		return nil, nil, stoppedOr(stop, job, cmp.Or(context.Cause(ctx), err))
	}
	if err := allowed(all); err != nil {
		return nil, nil, err
	}
	if err := m.AsStrict(all, job); err != nil {
		return nil, nil, err
	}
	// a command that an earlier process of this kind has begun, or an operator
	lock, err := m.cfg.Dir.LockName(ctx, ptr.Deref(job.Namespace), *job.ID, 0)
	if errors.Is(err, datadir.ErrNameInUse) {
		return nil, nil, errUnderWay(*job.ID)
	}
	if err != nil {
		return nil, nil, err
	}
	_ = lock.Close() // nothing was written
	args = []string{"update", "--replace"}
	if begins(all) {
		args = append([]string{"run", "--detach"}, m.cfg.RunFlags...)
	}
	if !interfaces.IsParent(job) {
		args = append(args, "--all")
	}
	return append(args, "--data-dir="+string(m.cfg.Dir), "-"), all, nil
}

// begins reports whether no allocation of a job runs.
func begins(all []*api.Allocation) bool { return len(all) == 0 || all[0].ClientTerminalStatus() }

// stoppedOr returns an error that says that the job was stopped, if stop has ended; otherwise err.
func stoppedOr(stop context.Context, job *api.Job, err error) error {
	if stop.Err() == nil {
		return err
	}
	words := fmt.Sprintf("job %q was stopped before its registration was carried out", *job.ID)
	return apierror.New(apierror.Conflict, words).Because(err)
}

// carryOut runs the command of a registration. Errors: *apierror.Error, and nothing has been changed or it was stopped;
// others.
func (m *Machine) carryOut(
	ctx, stop context.Context, job *api.Job, text []byte, args []string, before []*api.Allocation,
) error {
	err := m.commandUntil(ctx, stop, text, args...)
	if err == nil {
		return nil
	}
	if stop.Err() != nil {
		return stoppedOr(stop, job, err)
	}
	if failed, ok := errors.AsType[*commandError](err); ok && failed.code == exitUsage {
		return apierror.New(apierror.Invalid, failed.words)
	}
	if begins(before) { // a full disk, perhaps
		_ = m.catchUpWithin(ctx, client.Brief) // OfJob fails, too
		now, unread := m.OfJob(ctx, ptr.Deref(job.Namespace), *job.ID)
		if unread == nil && len(now) == len(before) {
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
			return apierror.New(apierror.Conflict, fmt.Sprintf("allocation %s has, or would get, a laxer setting %s than "+
				"the agent's, and the job would have it, too: stop the job, and register it again", alloc.ID, laxer))
		}
	}
	return nil
}

// laxer returns the name of a setting of an allocation that gives a job's tasks more than this process's settings, as
// it runs now or as it would run again: a settings file may say something else by then. It is empty for none.
func (m *Machine) laxer(id string, job *api.Job) (string, error) {
	record, err := settings.Read(m.cfg.Dir.Alloc(id))
	if err != nil {
		return "", err
	}
	next, err := m.cfg.Again(record)
	if err != nil {
		return "", err
	}
	for _, r := range []settings.Record{record, next} {
		of, err := r.Settings()
		if err != nil {
			return "", err
		}
		if name, err := settings.Laxer(of, m.cfg.Settings, job); name != "" || err != nil {
			return name, err
		}
	}
	return "", nil
}

// endTime bounds how long a registration waits for the end of the job's allocations before it is answered.
const endTime = 30 * time.Second

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
		if m.self.ctx.Err() != nil {
			return nil, apierror.New(apierror.CutOff)
		}
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

// Stop begins to stop the allocations of a job. It first ends a registration of the job that is under way, and keeps
// others away meanwhile, so that nothing starts after it has returned. found is false when there was nothing to stop.
func (m *Machine) Stop(
	ctx context.Context, namespace, job string, noShutdownDelay, purge bool,
) (found bool, err error) {
	key := jobKey(namespace, job)
	m.mu.Lock()
	m.stopping[key]++
	begun := m.registering[key]
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.stopping[key]--; m.stopping[key] == 0 {
			delete(m.stopping, key)
		}
	}()
	if begun != nil {
		begun.stop()
		<-begun.ended
	}
	all, err := m.stopAll(ctx, namespace, job, noShutdownDelay)
	if err != nil {
		return false, err
	}
	if purge && len(all) > 0 {
		err = m.purge(context.WithoutCancel(ctx), slice.Map(all, func(a *api.Allocation) string { return a.ID }))
	}
	return begun != nil || len(all) > 0, err
}

// stopAll begins to stop the allocations of a job, and returns all of its allocations. A command that starts or updates
// them, which an operator or an earlier agent has begun, is waited for: it ends soon when they stop.
func (m *Machine) stopAll(
	ctx context.Context, namespace, job string, noShutdownDelay bool,
) (all []*api.Allocation, err error) {
	stopped := map[string]bool{}
	var lock *os.File
	for since := time.Now(); ; {
		if lock == nil {
			if lock, err = m.cfg.Dir.LockName(ctx, namespace, job, 0); err == nil {
				defer lock.Close()
			} else if !errors.Is(err, datadir.ErrNameInUse) {
				return nil, err
			}
		}
		if all, err = m.OfJob(ctx, namespace, job); err != nil {
			return nil, err
		}
		failed := m.stop(ctx, all, noShutdownDelay, stopped)
		switch {
		case lock != nil && failed == nil:
			return all, nil
		case lock != nil && time.Since(since) > client.BusyTimeout:
			return nil, apierror.New(apierror.Unavailable, failed.Error()).Because(failed)
		}
		if err := wake.Sleep(ctx, client.Pause); err != nil {
			return nil, err
		}
	}
}

// stop begins to stop the allocations that are not in stopped, and adds them: by their processes, or by 'taskapi stop'
// for those without one. Errors: some are not stopped yet.
func (m *Machine) stop(
	ctx context.Context, all []*api.Allocation, noShutdownDelay bool, stopped map[string]bool,
) error {
	var left []string
	var failed error
	for _, alloc := range all {
		if stopped[alloc.ID] || alloc.ClientTerminalStatus() && !interfaces.Replaced(alloc) {
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
		said, _ := io.ReadAll(io.LimitReader(resp.Body, maxSaid)) // also for the next request
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			stopped[alloc.ID] = true
			continue
		}
		// A stop that could not be saved has begun, too. One that a replacement needs does not count.
		now := m.ask(ctx, alloc)
		stopped[alloc.ID] = now.DesiredStatus == api.AllocDesiredStatusStop && !interfaces.Replaced(now)
		if !stopped[alloc.ID] {
			failed = fmt.Errorf("allocation %s: %s: %s", alloc.ID, resp.Status, strings.TrimSpace(string(said)))
		}
	}
	if len(left) > 0 {
		data := "--data-dir=" + string(m.cfg.Dir)
		if err := m.command(ctx, nil, slices.Concat([]string{"stop", "--detach", data}, left)...); err != nil {
			return err
		}
	}
	for _, id := range left {
		stopped[id] = true
	}
	return failed
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

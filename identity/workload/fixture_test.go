package workload_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/identity/workload"
	"taskapi/internal/must"
)

// ring is a key ring that can be made to sign nothing.
type ring struct {
	*identity.Keyring
	fail bool
}

func (r *ring) Sign(c identity.Claims) (string, error) {
	if r.fail {
		return "", errors.New("no key")
	}
	return r.Keyring.Sign(c)
}

func (r *ring) remove(t *testing.T, id string) {
	t.Helper()
	must.OK(t, r.Remove(id))
}

// runner is a task's runner: it records what the manager has it do, with the time of each since the start.
type runner struct {
	t       *testing.T
	ring    *ring
	manager *workload.Manager
	tokens  *workload.Tokens
	dir     string
	full    bool          // the disk is
	gone    bool          // the process is: it can't be restarted
	hang    chan struct{} // a restart or a signal takes until this is closed; nil for no time

	begun time.Time
	mu    sync.Mutex // guards the fields below
	lines []string
	env   map[string]string // of the process
	files map[string]string
	saved map[string]string
}

// newRunner makes the runner of a task with these identities, which has not started, with a day as the ttl of those
// without one.
func newRunner(t *testing.T, log io.Writer, identities ...*api.WorkloadIdentity) *runner {
	t.Helper()
	r := &runner{
		t:     t,
		ring:  &ring{Keyring: identitytest.Keyring(t)},
		begun: time.Now(),
		dir:   t.TempDir(),
		files: map[string]string{},
	}
	r.manage(log, []string{"nomadproject.io"}, identities...)
	return r
}

// configOf is the configuration of an allocation's manager with a key ring, which logs nothing.
func configOf(keyring workload.Keyring) workload.Config {
	return workload.Config{
		Keyring: keyring, Logger: slog.New(slog.DiscardHandler), Audiences: []string{"nomadproject.io"}, TTL: time.Hour,
		Region: "global", Namespace: "default", JobID: "job", TaskGroup: "group", AllocationID: "alloc", Life: "life",
	}
}

// manage gives the task another manager, as another process does.
func (r *runner) manage(log io.Writer, audiences []string, identities ...*api.WorkloadIdentity) {
	config := configOf(r.ring)
	config.Logger, config.Audiences, config.TTL = slog.New(slog.NewTextHandler(log, nil)), audiences, 24*time.Hour
	r.manager = workload.New(config)
	r.tokens = r.manager.Task(&api.Task{Name: "t", Identities: identities})
}

func (r *runner) host() workload.Host {
	return workload.Host{Dir: r.dir, WriteFile: r.write, Save: r.save, Process: r}
}

func (r *runner) start() error {
	env, err := r.tokens.Start(r.host())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.env = env
	return err
}

// started starts the task.
func (r *runner) started() *runner {
	r.t.Helper()
	must.OK(r.t, r.start())
	return r
}

// run renews the task's tokens for some time.
func (r *runner) run(d time.Duration) {
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	r.manager.Run(ctx)
}

func (r *runner) record(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf("%v ", time.Since(r.begun))+fmt.Sprintf(format, args...))
}

func (r *runner) save(saved map[string]string) { r.saved = maps.Clone(saved) }

func (r *runner) write(path string, data []byte) error {
	if r.full {
		return syscall.ENOSPC
	}
	r.record("write %s", path)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[path] = string(data)
	return nil
}

func (r *runner) Restart(ctx context.Context, reason string) error {
	r.record("restart: %s", reason)
	if r.gone {
		return errors.New("not running")
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	return r.start()
}

func (r *runner) Signal(ctx context.Context, name string) error {
	r.record("signal %s", name)
	return r.wait(ctx)
}

func (r *runner) wait(ctx context.Context) error {
	if r.hang == nil {
		return nil
	}
	select {
	case <-r.hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// expect compares what the manager has done so far.
func (r *runner) expect(want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.lines); diff != "" {
		r.t.Errorf("what happened (-want +got):\n%s", diff)
	}
}

// key returns which key has signed a token.
func key(t *testing.T, token string) string {
	t.Helper()
	read, err := identity.Check(token)
	if err != nil {
		t.Fatalf("%q: %v", token, err)
	}
	return read.KeyID
}

func mustWrite(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("token"), 0o600)))
}

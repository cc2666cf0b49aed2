package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/volumes"
	"taskapi/auth"
	"taskapi/identity/workload"
	"taskapi/socket"
)

// Hooks returns the hooks that an agent gives its runner, for the removal of an allocation that has ended. A hook opens
// no file before it is called.
func Hooks(cfg Config) []interfaces.RunnerHook {
	return (&wiring{cfg: cfg, life: cfg.Lock.Life(), logger: cfg.Logger, agent: new(Agent)}).runnerHooks()
}

// runnerHooks returns the agent's hooks of the allocation.
func (s *wiring) runnerHooks() []interfaces.RunnerHook {
	s.operator = &operatorHook{wiring: s, socket: s.agent.socket}
	s.agent.socket = nil
	return append(s.claimHooks(), s.operator)
}

// taskHooks returns the agent's hooks of a task. They keep no version of the allocation alive.
func (s *wiring) taskHooks(alloc *api.Allocation, task *api.Task) []interfaces.TaskHook {
	return append([]interfaces.TaskHook{&taskHook{wiring: s, task: task.Name, tokens: s.tokens.Task(task)}},
		s.ownHooks(alloc, task)...)
}

// ownHooks returns those hooks of a task that need no API.
func (s *wiring) ownHooks(alloc *api.Allocation, task *api.Task) []interfaces.TaskHook {
	hooks := append(s.deviceHooks(task), volumes.Sticky(alloc)...)
	if s.volumes != nil && len(task.VolumeMounts) > 0 {
		hooks = append(hooks, s.volumes.Task(task))
	}
	return append(hooks, s.fileHooks(alloc, task)...)
}

// operatorHook gives the operator a socket and a token before the allocation begins. The wiring closes them.
type operatorHook struct {
	wiring *wiring

	mu     sync.Mutex // guards the fields below
	server *server
	token  *workload.Tokens
	socket *socket.Handover // the open socket that an earlier version of the job has left; nil for none
}

var (
	_ interfaces.RunnerPrerunHook  = (*operatorHook)(nil)
	_ interfaces.RunnerEndingHook  = (*operatorHook)(nil)
	_ interfaces.RunnerPostrunHook = (*operatorHook)(nil)
	_ interfaces.ShutdownHook      = (*operatorHook)(nil)
)

// Name returns the name of the hook.
func (h *operatorHook) Name() string { return "operator_api" }

// Ending opens the socket for an allocation that is only to end: a client may follow the end, or speed it up.
func (h *operatorHook) Ending(ctx context.Context, req *interfaces.RunnerPrerunRequest) error {
	return h.Prerun(ctx, req)
}

// Prerun issues the token and opens the socket, and then takes the lease: services are registered after it.
func (h *operatorHook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	s, alloc := h.wiring, req.Alloc
	if err := s.checkTaskSockets(alloc); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	if h.token, err = s.tokens.Operator(s.cfg.Dir.OperatorToken(s.cfg.ID)); err != nil {
		return err
	}
	h.server, err = s.serve(socketSpec{
		path:  s.cfg.Dir.OperatorSocket(s.cfg.ID),
		owner: auth.Owner{AllocationID: alloc.ID, UID: uint32(os.Geteuid())},
		uid:   -1,
		gid:   -1,
		from:  h.socket,
	})
	if err != nil {
		return err
	}
	h.socket = nil
	s.hold()
	return nil
}

// Postrun sends the end of the allocation to those who follow it.
func (h *operatorHook) Postrun(context.Context) error {
	h.wiring.flush()
	return nil
}

// Shutdown closes the socket of an allocation that runs on.
func (h *operatorHook) Shutdown() {
	h.wiring.flush()
	h.close()
}

// connections returns the number of open connections.
func (h *operatorHook) connections() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server == nil {
		return 0
	}
	return h.server.listener.Stats().Open
}

// handOver closes as close does, but keeps the socket open for the next version of the job, so that clients can connect
// in between.
func (h *operatorHook) handOver() *socket.Handover {
	h.mu.Lock()
	if h.server != nil {
		var err error
		if h.socket, err = h.server.listener.HandOver(); err != nil {
			h.wiring.logger.Warn("the operator's socket is away until the next version of the job begins", "error", err)
		}
	}
	left := h.socket
	h.socket = nil
	h.mu.Unlock()
	h.close()
	return left
}

// close ends the token and the socket, and waits for the requests on it. A second call does nothing.
func (h *operatorHook) close() {
	h.mu.Lock()
	server, token, unused := h.server, h.token, h.socket
	h.server, h.token, h.socket = nil, nil, nil
	h.mu.Unlock()
	if unused != nil {
		_ = unused.Close() // Prerun has failed, and its error says why
	}
	if token != nil {
		token.Stop()
	}
	if server == nil {
		return
	}
	if err := server.close(); err != nil {
		h.wiring.logger.Warn("the operator's socket could not be closed", "error", err)
	}
}

// checkTaskSockets returns an error, before anything runs, if a task's socket would have an address that no client can
// dial. Since a task's directory does not exist yet, one with a name that is too long stands in for it.
func (s *wiring) checkTaskSockets(alloc *api.Allocation) error {
	dir := s.cfg.Dir.Alloc(s.cfg.ID)
	for _, t := range alloc.GetTaskGroup().Tasks {
		if socket.Dialable(s.cfg.Dir.TaskSocket(s.cfg.ID, t.Name)) {
			continue
		}
		standIn := filepath.Join(dir, ".address-"+strings.Repeat("x", 110)) // an address holds 107 bytes
		if err := os.Mkdir(standIn, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("allocation directory: %w", err)
		}
		name := filepath.Base(s.cfg.Dir.TaskSocket(s.cfg.ID, t.Name))
		_, remove, err := socket.ShortLink(s.runtimeDirs, filepath.Join(standIn, name))
		if err != nil {
			err = fmt.Errorf("task %q: %w", t.Name, err)
		}
		return errors.Join(err, remove(), os.Remove(standIn))
	}
	return nil
}

// taskHook gives a task its identities and its socket, from before its first start until it has ended.
type taskHook struct {
	wiring *wiring
	task   string
	tokens *workload.Tokens

	mu     sync.Mutex // guards the field below
	server *server
}

var (
	_ interfaces.TaskPrestartHook = (*taskHook)(nil)
	_ interfaces.TaskBesideHook   = (*taskHook)(nil)
	_ interfaces.TaskStopHook     = (*taskHook)(nil)
	_ interfaces.ShutdownHook     = (*taskHook)(nil)
)

// Name returns the name of the hook.
func (h *taskHook) Name() string { return "task_api" }

// Prestart issues the task's tokens and opens its socket. The socket stays through restarts; each start gets new
// tokens. A resumed process keeps the tokens in its environment.
func (h *taskHook) Prestart(
	_ context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	// The request itself would keep a version of the allocation alive.
	write := req.WriteFile
	host := workload.Host{
		Dir: req.Dir.Dir, Save: req.Keep, Process: req.Lifecycle,
		WriteFile: func(path string, data []byte) error { return write(interfaces.File{Path: path, Data: data}) },
	}
	var env map[string]string
	var err error
	if req.Restored {
		env, err = h.tokens.Resume(host, req.Kept)
	} else {
		env, err = h.tokens.Start(host)
	}
	if err != nil {
		return nil, err
	}
	addr, err := h.listen(req)
	if err != nil {
		return nil, err
	}
	env["NOMAD_UNIX_ADDR"] = "unix://" + addr
	return &interfaces.TaskPrestartResponse{Env: env}, nil
}

// BesideEnv returns tokens for a program beside the task's process, which may outlive the tokens in its environment.
func (h *taskHook) BesideEnv() map[string]string { return h.tokens.Beside() }

// listen opens the task's socket unless it is open, and returns the path by which clients dial it.
func (h *taskHook) listen(req *interfaces.TaskPrestartRequest) (string, error) {
	h.mu.Lock() // held while the socket is made: starts of one task do not overlap, but Stop may be called
	defer h.mu.Unlock()
	if h.server != nil {
		return h.server.addr, nil
	}
	opened, err := h.wiring.serve(socketSpec{
		path:  h.wiring.cfg.Dir.TaskSocket(h.wiring.cfg.ID, h.task),
		owner: auth.Owner{AllocationID: req.Alloc.ID, Task: h.task, UID: req.User.UID, GID: req.User.GID},
		uid:   int(req.User.UID),
		gid:   int(req.User.GID),
	})
	if err != nil {
		return "", err
	}
	h.server = opened
	return opened.addr, nil
}

// Stop closes the socket when the task has ended.
func (h *taskHook) Stop(context.Context) error {
	h.tokens.Stop()
	h.mu.Lock()
	server := h.server
	h.server = nil
	h.mu.Unlock()
	if server == nil { // the task never started, or ended without a taskapi: a killed one may have left the socket
		return socket.RemoveStale(h.wiring.cfg.Dir.TaskSocket(h.wiring.cfg.ID, h.task))
	}
	return server.close()
}

// Shutdown does what Stop does, for a task that runs on.
func (h *taskHook) Shutdown() {
	if err := h.Stop(context.Background()); err != nil {
		h.wiring.logger.Warn("a task's socket could not be closed", "task", h.task, "error", err)
	}
}

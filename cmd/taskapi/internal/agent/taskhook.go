package agent

import (
	"context"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/identity/workload"
	"taskapi/socket"
)

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
	_ interfaces.TaskStopHook     = (*taskHook)(nil)
	_ interfaces.ShutdownHook     = (*taskHook)(nil)
)

// newTaskHook makes the hook of one task. It keeps no version of the allocation alive.
func (s *wiring) newTaskHook(task *api.Task) *taskHook {
	return &taskHook{wiring: s, task: task.Name, tokens: s.tokens.Task(task)}
}

// Name returns the name of the hook.
func (h *taskHook) Name() string { return "task_api" }

// Prestart issues the task's tokens and opens its socket. The socket stays through restarts; tokens are new with each start. A process that
// is resumed has its environment already.
func (h *taskHook) Prestart(_ context.Context, req *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	env, err := h.issue(req)
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

// issue issues the task's tokens for a start, or keeps those of its process.
func (h *taskHook) issue(req *interfaces.TaskPrestartRequest) (map[string]string, error) {
	// The rest of the request would keep a version of the allocation alive.
	write := req.WriteFile
	host := workload.Host{Dir: req.Dir.Dir, Save: req.Keep, Process: req.Lifecycle, WriteFile: func(path string, data []byte) error {
		return write(interfaces.File{Path: path, Data: data})
	}}
	if req.Restored {
		return h.tokens.Resume(host, req.Kept)
	}
	return h.tokens.Start(host)
}

// listen opens the task's socket unless it is open, and gives the path by which clients dial it.
func (h *taskHook) listen(req *interfaces.TaskPrestartRequest) (string, error) {
	h.mu.Lock() // held over the making of the socket: starts of one task do not overlap, but Stop may come
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
	if server == nil { // it never started, or ended while no taskapi ran: one that was killed has left its socket
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

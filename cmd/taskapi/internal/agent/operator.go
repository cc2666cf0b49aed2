package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/identity/workload"
	"taskapi/socket"
)

// operatorHook gives the operator a socket and a token while the allocation lives.
type operatorHook struct {
	wiring *wiring
	server *server
	token  *workload.Tokens
}

var (
	_ interfaces.RunnerPrerunHook  = (*operatorHook)(nil)
	_ interfaces.RunnerEndingHook  = (*operatorHook)(nil)
	_ interfaces.RunnerPostrunHook = (*operatorHook)(nil)
	_ interfaces.ShutdownHook      = (*operatorHook)(nil)
)

// Name returns the name of the hook.
func (h *operatorHook) Name() string { return "operator_api" }

// Ending opens the socket for an allocation that only ends: a client may follow that, or make it quicker.
func (h *operatorHook) Ending(ctx context.Context, req *interfaces.RunnerPrerunRequest) error {
	return h.Prerun(ctx, req)
}

// Prerun issues the token and opens the socket.
func (h *operatorHook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	s, alloc := h.wiring, req.Alloc
	if err := s.checkTaskSockets(alloc); err != nil {
		return err
	}
	var err error
	if h.token, err = s.tokens.Operator(s.paths.OperatorToken); err != nil {
		return err
	}
	h.server, err = s.serve(socketSpec{
		path:  s.paths.OperatorSocket,
		owner: auth.Owner{AllocationID: alloc.ID, UID: uint32(os.Geteuid())},
		uid:   -1,
		gid:   -1,
	})
	return err
}

// Postrun closes the socket, after those who follow the allocation have got its end.
func (h *operatorHook) Postrun(context.Context) error {
	h.wiring.flush()
	if h.token != nil {
		h.token.Stop()
	}
	if h.server == nil {
		return nil
	}
	return h.server.close()
}

// Shutdown does what Postrun does, for an allocation that runs on.
func (h *operatorHook) Shutdown() {
	if err := h.Postrun(context.Background()); err != nil {
		h.wiring.logger.Warn("the operator's socket could not be closed", "error", err)
	}
}

// checkTaskSockets makes sure, before anything runs, that each task's socket will have an address that clients can dial. A
// task's own directory does not exist yet: one with a name that is too long stands in for it.
func (s *wiring) checkTaskSockets(alloc *api.Allocation) error {
	dir := s.paths.Alloc
	for _, t := range alloc.GetTaskGroup().Tasks {
		if socket.Dialable(s.paths.TaskSocket(t.Name)) {
			continue
		}
		standIn := filepath.Join(dir, ".address-"+strings.Repeat("x", 110)) // 110 more than a socket address holds
		if err := os.Mkdir(standIn, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("allocation directory: %w", err)
		}
		_, remove, err := socket.ShortLink(s.runtimeDirs, filepath.Join(standIn, filepath.Base(s.paths.TaskSocket(t.Name))))
		if err != nil {
			err = fmt.Errorf("task %q: %w", t.Name, err)
		}
		return errors.Join(err, remove(), os.Remove(standIn))
	}
	return nil
}

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/identity"
	"taskapi/socket"
)

// taskHook gives a task its identities and its socket, from before its first start until it is over.
type taskHook struct {
	side   *wiring
	task   string
	wallet *wallet

	mu     sync.Mutex // guards the field below
	server *taskServer
}

// taskServer is what a task has while it is not over: its socket, and the renewal of its identities.
type taskServer struct {
	*server
	stopRenewal context.CancelFunc
	renewal     sync.WaitGroup
}

var (
	_ interfaces.TaskPrestartHook = (*taskHook)(nil)
	_ interfaces.TaskStopHook     = (*taskHook)(nil)
	_ interfaces.ShutdownHook     = (*taskHook)(nil)
)

// newTaskHook makes the hook of one task. It keeps no version of the allocation alive.
func (s *wiring) newTaskHook(task *api.Task) *taskHook {
	name := task.Name
	issue := func(wi *api.WorkloadIdentity) (issued, error) { return s.sign(s.runner.Alloc(), name, wi) }
	h := &taskHook{side: s, task: name, wallet: newWallet(task, issue, s.isGood, s.logger)}
	s.wallets = append(s.wallets, h.wallet)
	return h
}

// Name implements interfaces.TaskHook.
func (h *taskHook) Name() string { return "task_api" }

// Prestart implements interfaces.TaskPrestartHook. The socket stays through restarts; tokens are new with each start.
// A process that is taken over has its environment already.
func (h *taskHook) Prestart(_ context.Context, req *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	env, err := h.wallet.fill(req)
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

// listen opens the task's socket unless it is open, and gives the path by which clients dial it.
func (h *taskHook) listen(req *interfaces.TaskPrestartRequest) (string, error) {
	h.mu.Lock() // held over the making of the socket: starts of one task do not overlap, but Stop may come
	defer h.mu.Unlock()
	if h.server != nil {
		return h.server.addr, nil
	}
	opened, err := h.side.serve(socketSpec{
		path:  h.side.paths.TaskSocket(h.task),
		owner: auth.Owner{AllocationID: req.Alloc.ID, Task: h.task, UID: req.User.UID},
		uid:   int(req.User.UID),
		gid:   int(req.User.GID),
	})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.server = &taskServer{server: opened, stopRenewal: cancel}
	h.server.renewal.Go(func() { h.wallet.run(ctx) })
	return opened.addr, nil
}

// Stop implements interfaces.TaskStopHook.
func (h *taskHook) Stop(context.Context) error {
	h.mu.Lock()
	server := h.server
	h.server = nil
	h.mu.Unlock()
	if server == nil { // it never started, or ended while nobody looked: a taskapi that was killed has left its socket
		return socket.RemoveStale(h.side.paths.TaskSocket(h.task))
	}
	server.stopRenewal()
	server.renewal.Wait()
	return server.close()
}

// Shutdown implements interfaces.ShutdownHook.
func (h *taskHook) Shutdown() {
	if err := h.Stop(context.Background()); err != nil {
		h.side.logger.Warn("a task's socket could not be closed", "task", h.task, "error", err)
	}
}

// sign makes a token of a task's identity. An identity without a ttl lives as long as the sidecar's flag says: a token in an
// environment variable can't be renewed.
func (s *wiring) sign(alloc *api.Allocation, task string, wi *api.WorkloadIdentity) (issued, error) {
	ttl := wi.TTL
	if ttl <= 0 {
		ttl = s.settings.IdentityTTL
	}
	claims := s.claims(alloc, task, wi.Name, ttl)
	claims.Audience = s.audienceOf(wi)
	token, err := s.keyring.Sign(claims)
	if err != nil {
		return issued{}, fmt.Errorf("sign identity %q of task %q: %w", wi.Name, task, err)
	}
	read, err := identity.Check(token) // which key the ring has signed it with
	if err != nil {
		return issued{}, fmt.Errorf("sign identity %q of task %q: %w", wi.Name, task, err)
	}
	return issued{token, note{time.Unix(claims.IssuedAt, 0), time.Unix(claims.ExpiresAt, 0), read.KeyID, strings.Join(claims.Audience, " ")}}, nil
}

// isGood reports that the key ring has the key of a token, and that it is for whom a new one would be.
func (s *wiring) isGood(wi *api.WorkloadIdentity, n note) bool {
	return slices.Contains(s.keyring.Keys().IDs(), n.key) && (n.audience == "" || n.audience == strings.Join(s.audienceOf(wi), " "))
}

// audienceOf is for whom an identity's tokens are: those that the job file names, or whoever this API's tokens must be for. A canonical
// job names Nomad's default for a task's default identity where the file names nobody.
func (s *wiring) audienceOf(wi *api.WorkloadIdentity) []string {
	unnamed := wi.Name == identity.DefaultName && slices.Equal(wi.Audience, []string{identity.DefaultAudience})
	if len(wi.Audience) == 0 || unnamed {
		return s.settings.audience()
	}
	return wi.Audience
}

// claims are what every token of this allocation says.
func (s *wiring) claims(alloc *api.Allocation, task, name string, ttl time.Duration) identity.Claims {
	now := time.Now()
	return identity.Claims{
		ID:           uuid.NewString(),
		Issuer:       s.settings.Issuer,
		Subject:      identity.Subject(*alloc.Job.Region, alloc.Namespace, alloc.JobID, alloc.TaskGroup, task, name),
		Audience:     s.settings.audience(),
		IssuedAt:     now.Unix(),
		NotBefore:    now.Unix(),
		ExpiresAt:    now.Add(ttl + time.Second - 1).Unix(), // up to a whole second
		Namespace:    alloc.Namespace,
		JobID:        alloc.JobID,
		AllocationID: alloc.ID,
		Task:         task,
		Life:         s.life,
	}
}

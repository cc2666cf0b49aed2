package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/identity"
	"taskapi/socket"
)

// maxConnections caps the connections of all sockets together. Each costs some 20 KiB; a task seldom has more than a handful.
const maxConnections = 1024

// refusal is what a connection over a cap reads.
const refusal = handlers.Refusal

// sidecar is one allocation with everything around it: the place where the rooms meet.
type sidecar struct {
	options     runOptions
	layout      layout
	logger      *slog.Logger
	keyring     *identity.Keyring
	issuers     []issuer
	wallets     []*wallet // of the tasks
	auditFile   *os.File  // nil for none
	policy      *auth.Policy
	connections *socket.Cap
	sockets     sockets
	runtimeDirs []string
	runner      interfaces.AllocRunner
	api         *handlers.API
	state       *state.DB
	resumed     *interfaces.Saved // of an allocation whose taskapi was killed; nil for a new one
}

// newSidecar puts the rooms together for an allocation and prepares the machine: directories, keys, state. Nothing runs yet.
func newSidecar(opts runOptions, l layout, alloc *api.Allocation, p *printer, logger *slog.Logger, w world) (_ *sidecar, err error) {
	s := &sidecar{
		options:     opts,
		layout:      l,
		logger:      logger,
		connections: socket.NewCap(maxConnections),
		runtimeDirs: socket.RuntimeDirs(os.Geteuid(), w.getenv("XDG_RUNTIME_DIR")),
	}
	if err := l.make(); err != nil {
		return nil, err
	}
	if s.keyring, err = identity.OpenKeyring(opts.keyringConfig(l)); err != nil {
		return nil, err
	}
	if s.issuers, err = openIssuers(opts.jwks, logger); err != nil {
		return nil, err
	}
	if s.policy, err = openPolicy(opts.policy); err != nil {
		return nil, err
	}
	if err := s.openState(alloc); err != nil {
		return nil, err
	}
	if s.resumed != nil {
		alloc = s.resumed.Alloc
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.runner, err = allocrunner.New(interfaces.Config{
		Alloc:      alloc,
		Dir:        l.alloc(alloc.ID),
		HostIP:     opts.hostIP,
		Datacenter: datacenter,
		Version:    version,
		Logger:     logger,
		State:      s.state,
		Saved:      s.resumed,
		Hooks:      []interfaces.RunnerHook{&operatorHook{side: s}},
		TaskHooks: func(alloc *api.Allocation, task *api.Task) []interfaces.TaskHook {
			return []interfaces.TaskHook{s.newTaskHook(alloc, task)}
		},
		OnEvent: p.taskEvent,
	}); err != nil {
		return nil, usage(err)
	}
	return s, s.openDoor(alloc)
}

// openState claims the allocation's directory, and finds out whether another taskapi has left the allocation there.
func (s *sidecar) openState(alloc *api.Allocation) error {
	dir := s.layout.alloc(alloc.ID)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("allocation directory %s can't be made: %w", dir, unwrapPath(err))
	}
	db, err := state.Open(filepath.Join(dir, state.FileName))
	if errors.Is(err, state.ErrInUse) {
		return fmt.Errorf("allocation %s is already run by another taskapi; 'taskapi status' shows it", alloc.ID)
	}
	if err != nil {
		return err
	}
	saved, err := db.Saved()
	if err == nil {
		err = resumable(saved, alloc)
	} else if errors.Is(err, state.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return errors.Join(err, db.Close())
	}
	s.state, s.resumed = db, saved
	return nil
}

// resumable reports whether an allocation that was left behind is the one that is asked for, and not over.
func resumable(saved *interfaces.Saved, asked *api.Allocation) error {
	if saved.Over {
		return usage(fmt.Errorf("allocation %s has been run before and was last %s: give another --alloc-id, or none",
			asked.ID, saved.Alloc.ClientStatus))
	}
	was, err := json.Marshal(saved.Alloc.Job)
	if err != nil {
		return fmt.Errorf("job of allocation %s: %w", asked.ID, err)
	}
	is, err := json.Marshal(asked.Job)
	if err != nil {
		return fmt.Errorf("job %q: %w", asked.JobID, err)
	}
	if !bytes.Equal(was, is) || saved.Alloc.TaskGroup != asked.TaskGroup {
		return usage(fmt.Errorf("allocation %s was started from another job file, group or variables than these, and its tasks may still run: "+
			"give what it was started with to go on with it, or another --alloc-id", asked.ID))
	}
	return nil
}

// gcPercent is how far the heap may grow before it is collected. A sidecar at work has some 3 MB that live and makes 3 KB of garbage for
// each request: at Go's own 100 the collector takes a tenth of the throughput (make bench), for a heap smaller by 9 MB at most.
const gcPercent = 300

// run runs the allocation to its end.
func (s *sidecar) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	var background sync.WaitGroup
	defer background.Wait()
	if !s.options.gogc { // GOGC in the environment is the operator's word
		debug.SetGCPercent(gcPercent)
	}
	background.Go(debug.FreeOSMemory) // what reading the job file has left
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	background.Go(func() { s.keyring.Watch(watching, s.logger) })
	background.Go(func() { s.reissueOnChange(watching) })
	for _, i := range s.issuers {
		background.Go(func() { i.follow(watching, s.logger) })
	}
	return s.runner.Run(ctx)
}

// close gives back what newSidecar opened.
func (s *sidecar) close() error {
	err := s.state.Close()
	if s.auditFile != nil {
		err = errors.Join(err, s.auditFile.Close())
	}
	return err
}

// reissueOnChange replaces the tokens of the operator and of the tasks whenever the key that signed them has left the ring.
func (s *sidecar) reissueOnChange(ctx context.Context) {
	active := s.keyring.List()[0].ID // the first is the active one
	for {
		replaced := s.keyring.Replaced()
		if !slices.Contains(s.keyring.Keys().IDs(), active) {
			active = s.keyring.List()[0].ID
			s.reissue()
		}
		select {
		case <-ctx.Done():
			return
		case <-replaced:
		}
	}
}

func (s *sidecar) reissue() {
	if err := s.writeOperatorToken(s.runner.Alloc()); err != nil {
		s.logger.Warn("the operator's token was signed by a removed key and could not be replaced", "error", err)
	}
	for _, w := range s.wallets {
		w.reissue()
	}
}

// operatorHook gives the operator a socket and a token while the allocation lives.
type operatorHook struct {
	side   *sidecar
	server *server
}

var (
	_ interfaces.RunnerPrerunHook  = (*operatorHook)(nil)
	_ interfaces.RunnerPostrunHook = (*operatorHook)(nil)
	_ interfaces.ShutdownHook      = (*operatorHook)(nil)
)

// Name implements interfaces.RunnerHook.
func (h *operatorHook) Name() string { return "operator_api" }

// Prerun implements interfaces.RunnerPrerunHook.
func (h *operatorHook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	s, alloc := h.side, req.Alloc
	if err := s.checkTaskSockets(alloc); err != nil {
		return err
	}
	if err := s.writeOperatorToken(alloc); err != nil {
		return err
	}
	var err error
	h.server, err = s.serve(socketSpec{
		path:  s.layout.operatorSocket(alloc.ID),
		owner: auth.Owner{AllocationID: alloc.ID},
		uid:   -1,
		gid:   -1,
	})
	return err
}

// writeOperatorToken signs a token of the operator and puts it in place of the one before.
func (s *sidecar) writeOperatorToken(alloc *api.Allocation) error {
	claims := s.claims(alloc, "", string(identity.RoleOperator), s.options.identityTTL)
	claims.Role = identity.RoleOperator
	token, err := s.keyring.Sign(claims)
	if err != nil {
		return fmt.Errorf("sign the operator's token: %w", err)
	}
	if err := replaceFile(s.layout.operatorToken(alloc.ID), []byte(token)); err != nil {
		return fmt.Errorf("write the operator's token: %w", err)
	}
	return nil
}

// Postrun implements interfaces.RunnerPostrunHook.
func (h *operatorHook) Postrun(context.Context) error {
	if h.server == nil {
		return nil
	}
	return h.server.close()
}

// Shutdown implements interfaces.ShutdownHook.
func (h *operatorHook) Shutdown() {
	if err := h.Postrun(context.Background()); err != nil {
		h.side.logger.Warn("the operator's socket could not be closed", "error", err)
	}
}

// checkTaskSockets makes sure, before anything runs, that each task's socket will have an address that clients can dial. A
// task's own directory does not exist yet: one with a name that is too long stands in for it.
func (s *sidecar) checkTaskSockets(alloc *api.Allocation) error {
	dir := s.layout.alloc(alloc.ID)
	for _, t := range alloc.GetTaskGroup().Tasks {
		path := filepath.Join(dir, t.Name, "secrets", apiSocketName)
		if socket.Dialable(path) {
			continue
		}
		standIn := filepath.Join(dir, ".address-"+strings.Repeat("x", 110)) // 110 more than a socket address holds
		if err := os.Mkdir(standIn, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("allocation directory: %w", err)
		}
		_, remove, err := socket.ShortLink(s.runtimeDirs, filepath.Join(standIn, apiSocketName))
		if err != nil {
			err = fmt.Errorf("task %q: %w", t.Name, err)
		}
		return errors.Join(err, remove(), os.Remove(standIn))
	}
	return nil
}

// replaceFile writes a file of ours, mode 0600, whole or not at all.
func replaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-") // made with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

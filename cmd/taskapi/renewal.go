package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/identity"
)

// renewRetry is the pause after a renewal that failed: the old token is good for as long again as it has been.
const renewRetry = time.Second

// wallet is one task's identities: it issues their tokens, and renews those with a ttl when half of it is over, as Nomad does. Both
// tokens are valid while they overlap.
type wallet struct {
	identities []*api.WorkloadIdentity
	issue      func(*api.WorkloadIdentity) (string, error)
	logger     *slog.Logger

	mu   sync.Mutex                      // guards the fields below
	req  *interfaces.TaskPrestartRequest // of the latest start
	due  map[string]time.Time            // by identity: when it is to be renewed; absent when it is not
	kick chan struct{}                   // the dates have changed; capacity 1
}

// newWallet makes the wallet of a task.
func newWallet(task *api.Task, issue func(*api.WorkloadIdentity) (string, error), logger *slog.Logger) *wallet {
	return &wallet{
		identities: workloadIdentities(task),
		issue:      issue,
		logger:     logger.With("task", task.Name),
		due:        map[string]time.Time{},
		kick:       make(chan struct{}, 1),
	}
}

// fill issues every identity for a start of the task, writes those that are files and gives those that are variables.
func (w *wallet) fill(req *interfaces.TaskPrestartRequest) (map[string]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock() // held over writing files: a renewal must not come between an old token and a new one
	w.req = req
	env := map[string]string{}
	for _, wi := range w.identities {
		token, err := w.putLocked(wi)
		if err != nil {
			return nil, err
		}
		if wi.Env {
			env[tokenVariable(wi.Name)] = token
		}
	}
	w.wake()
	return env, nil
}

// putLocked issues one identity, writes its file if it has one, and sets the date of its renewal.
func (w *wallet) putLocked(wi *api.WorkloadIdentity) (string, error) {
	token, err := w.issue(wi)
	if err != nil {
		return "", err
	}
	if wi.File {
		if err := w.req.WriteFile(tokenPath(wi), []byte(token)); err != nil {
			return "", fmt.Errorf("write identity %q: %w", wi.Name, err)
		}
	}
	if wi.TTL > 0 && (wi.File || wi.ChangeMode == "restart") {
		w.due[wi.Name] = time.Now().Add(wi.TTL / 2)
	}
	return token, nil
}

// reissue makes every identity due, because the key that signed them is trusted no longer.
func (w *wallet) reissue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.req == nil {
		return // not started yet
	}
	for _, wi := range w.identities {
		if wi.File || wi.ChangeMode == "restart" {
			w.due[wi.Name] = time.Now()
		}
	}
	w.wake()
}

func (w *wallet) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run renews identities until ctx ends.
func (w *wallet) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if next, ok := w.next(); ok {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
		case <-timer.C:
			for _, wi := range w.renewDue() {
				w.announce(ctx, wi)
			}
		}
	}
}

// next is the earliest date of a renewal.
func (w *wallet) next() (earliest time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.due {
		if !ok || t.Before(earliest) {
			earliest, ok = t, true
		}
	}
	return earliest, ok
}

// renewDue renews what is due and gives the identities that were.
func (w *wallet) renewDue() []*api.WorkloadIdentity {
	w.mu.Lock()
	defer w.mu.Unlock()
	var renewed []*api.WorkloadIdentity
	for _, wi := range w.identities {
		if due, ok := w.due[wi.Name]; !ok || time.Now().Before(due) {
			continue
		}
		delete(w.due, wi.Name)
		if _, err := w.putLocked(wi); err != nil {
			w.logger.Warn("identity not renewed; it is tried again", "identity", wi.Name, "error", err)
			w.due[wi.Name] = time.Now().Add(renewRetry)
			continue
		}
		renewed = append(renewed, wi)
	}
	return renewed
}

// announce tells the task of a renewed identity in the way that its change_mode asks for. A task that does not run needs no telling:
// it finds the new token when it starts.
func (w *wallet) announce(ctx context.Context, wi *api.WorkloadIdentity) {
	w.mu.Lock()
	life := w.req.Lifecycle
	w.mu.Unlock()
	var err error
	switch wi.ChangeMode {
	case "signal":
		err = life.Signal(ctx, wi.ChangeSignal)
	case "restart":
		err = life.Restart(ctx, fmt.Sprintf("Identity %q was renewed", wi.Name))
	}
	if err != nil {
		w.logger.Debug("task not told of its renewed identity", "identity", wi.Name, "change_mode", wi.ChangeMode, "error", err)
	}
}

// workloadIdentities are a task's identities, the default one first. Every task has that.
func workloadIdentities(task *api.Task) []*api.WorkloadIdentity {
	first := &api.WorkloadIdentity{}
	if task.Identity != nil {
		copied := *task.Identity
		first = &copied
	}
	first.Name = identity.DefaultName
	return append([]*api.WorkloadIdentity{first}, task.Identities...)
}

// tokenVariable is the environment variable of an identity that has env = true.
func tokenVariable(name string) string {
	if name == identity.DefaultName {
		return "NOMAD_TOKEN"
	}
	return "NOMAD_TOKEN_" + name
}

// tokenPath is the file of an identity that has file = true, relative to the task's directory.
func tokenPath(wi *api.WorkloadIdentity) string {
	switch {
	case wi.Filepath != "":
		return wi.Filepath
	case wi.Name == identity.DefaultName:
		return filepath.Join("secrets", tokenName)
	}
	return filepath.Join("secrets", "nomad_"+wi.Name+".jwt")
}

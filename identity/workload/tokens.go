package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
)

// Host is what a task's runner does for the manager. It may be used until Tokens.Stop has returned.
type Host struct {
	// Dir is the task's directory. The task may have put anything anywhere in it.
	Dir string
	// WriteFile replaces the file at a path below Dir, whole or not at all, for the task's user alone.
	WriteFile func(path string, data []byte) error
	// Save persists token metadata (no secrets) across restarts. It replaces the metadata saved before.
	Save func(map[string]string)
	// Process is the task's process.
	Process Process
}

// Process has the actions of a change_mode on the task's process.
type Process interface {
	// Restart replaces the process, and returns when the old one is gone. The new one gets its tokens from Tokens.Start.
	Restart(ctx context.Context, reason string) error
	Signal(ctx context.Context, name string) error
}

// Tokens are the tokens of a task or of the operator.
type Tokens struct {
	manager *Manager
	task    *api.Task // what claims have of it; nil for the operator
	logger  *slog.Logger
	// inspect returns the metadata of the token in the operator's file, nil when a new token would differ from it. It is
	// nil for a task, whose files belong to the task.
	inspect func(s *state, now time.Time) *metadata

	// mu guards the fields below. It is held while files are written, so that no renewal replaces a newer token.
	mu         sync.Mutex
	host       Host // of the latest start
	active     bool // from a start to Stop
	identities []*state
	pending    []*state           // whose change_mode is due
	cancel     context.CancelFunc // of the goroutine that works through pending; nil without one
	reactions  sync.WaitGroup     // that goroutine
}

// state is one identity with its tokens and their renewal.
type state struct {
	*api.WorkloadIdentity // never changed

	out          issued
	issueAfter   time.Time // after a renewal that failed
	restartAfter time.Time // after a change_mode that has not succeeded, or not led to a start, yet
	reacting     bool      // its change_mode is due
	failing      bool      // a renewal has failed, which has been logged
	refused      bool      // a token in the environment is refused, which has been logged
}

// Task returns the tokens of a task: those of its default identity, which every task has, and of the identities in its
// job file.
func (m *Manager) Task(task *api.Task) *Tokens {
	first := &api.WorkloadIdentity{}
	if task.Identity != nil {
		copied := *task.Identity
		first = &copied
	}
	first.Name = identity.DefaultName
	t := &Tokens{manager: m, logger: m.config.Logger.With("task", task.Name)}
	t.task = &api.Task{Name: task.Name, Vault: task.Vault, Consul: task.Consul} // the rest of a large job is not kept
	for _, wi := range append([]*api.WorkloadIdentity{first}, task.Identities...) {
		if !wi.File && !wi.Env && wi.ChangeMode != "restart" {
			continue // nobody would see its tokens
		}
		resolved := *wi
		resolved.Audience, resolved.Filepath = m.audience(wi), file(wi)
		t.identities = append(t.identities, &state{WorkloadIdentity: &resolved})
	}
	return t
}

// audience returns the audience of an identity's tokens: that of the job, or else the configured one. The default
// identity always has the configured one, because it is for the API.
func (m *Manager) audience(wi *api.WorkloadIdentity) []string {
	if len(wi.Audience) == 0 || wi.Name == identity.DefaultName {
		return m.config.Audiences
	}
	return wi.Audience
}

// Start issues tokens for a new process of the task and writes those that belong in files. It returns those for
// environment variables, by the variables' names. All of them are renewed until Stop.
func (t *Tokens) Start(host Host) (map[string]string, error) { return t.begin(host, t.issueLocked) }

// Resume takes over the tokens of a running process; saved is what Save was last given for it. A good token in a file
// stays. The returned tokens stand in for its own, which exist only in its environment.
func (t *Tokens) Resume(host Host, saved map[string]string) (map[string]string, error) {
	return t.begin(host, func(s *state, now time.Time) (string, error) { return t.adoptLocked(s, saved[s.Name], now) })
}

func (t *Tokens) begin(host Host, get func(*state, time.Time) (string, error)) (map[string]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.host, t.pending = host, nil // the tokens of this start are new
	env := map[string]string{}
	now := t.manager.config.Now()
	for _, s := range t.identities {
		*s = state{WorkloadIdentity: s.WorkloadIdentity, out: issued{File: s.out.File}}
		token, err := get(s, now)
		if err != nil {
			return nil, err
		}
		if s.Env {
			env[variable(s.Name)] = token
		}
	}
	t.saveLocked()
	t.active = true
	t.manager.mu.Lock()
	t.manager.active[t] = true
	t.manager.mu.Unlock()
	t.manager.ClockSet()
	return env, nil
}

// Beside returns new tokens, under the names of the environment, for a program that begins beside the task's process.
// Those of the process may have expired since its start. An identity that can't be signed now is left out.
func (t *Tokens) Beside() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	env := map[string]string{}
	if !t.active {
		return env
	}
	now := t.manager.config.Now()
	for _, s := range t.identities {
		if !s.Env {
			continue
		}
		if token, _, err := t.manager.sign(t.claims(s, now), now); err == nil {
			env[variable(s.Name)] = token
		} else {
			t.logger.Warn("no new token for a program beside the task", "identity", s.Name, "error", err)
		}
	}
	return env
}

// issueLocked issues an identity's token for a start. If it can't be written, as on a full disk, the file of an earlier
// start is used while its token is good.
func (t *Tokens) issueLocked(s *state, now time.Time) (string, error) {
	token, meta, err := t.manager.sign(t.claims(s, now), now)
	if err != nil {
		return "", err
	}
	if s.Env || !s.File {
		s.out.Env = meta
	}
	if !s.File {
		return token, nil
	}
	err = t.writeLocked(s, token, meta)
	if old := s.out.File; err != nil && old.current(now, t.claims(s, now), t.trusted) && now.Before(old.ExpiresAt) &&
		regularFile(t.host.Dir, s.Filepath) {
		t.logger.Warn("identity not written; the task starts with the file that is there", "identity", s.Name, "error", err)
		s.out.stale, s.issueAfter = true, now.Add(retryInterval)
		return token, nil
	}
	return token, err
}

// adoptLocked takes over the tokens of an identity that an earlier process issued, and returns one in place of that in
// the environment.
func (t *Tokens) adoptLocked(s *state, saved string, now time.Time) (string, error) {
	s.out = issued{}
	if err := json.Unmarshal([]byte(saved), &s.out); err != nil {
		s.out = issued{} // what is not known to be good is replaced
	}
	if !s.File || !regularFile(t.host.Dir, s.Filepath) {
		s.out.File = nil
	}
	unknown := !s.File && s.out.Env == nil
	if !s.Env && !unknown {
		return "", nil
	}
	token, meta, err := t.manager.sign(t.claims(s, now), now)
	if err != nil {
		return "", err
	}
	if unknown { // the age of its token is unknown: at worst it is replaced late
		s.out.Env = meta
	}
	return token, nil
}

// writeLocked puts a token into the identity's file.
func (t *Tokens) writeLocked(s *state, token string, meta *metadata) error {
	if err := t.host.WriteFile(s.Filepath, []byte(token)); err != nil {
		return fmt.Errorf("write identity %q: %w", s.Name, err)
	}
	s.out.File, s.out.stale = meta, false
	return nil
}

// saveLocked gives the metadata of all tokens to Host.Save.
func (t *Tokens) saveLocked() {
	if t.host.Save == nil {
		return
	}
	saved := make(map[string]string, len(t.identities))
	for _, s := range t.identities {
		encoded, err := json.Marshal(s.out)
		if err != nil {
			panic("workload: encode metadata: " + err.Error()) // strings and times of four-digit years always can be
		}
		saved[s.Name] = string(encoded)
	}
	t.host.Save(saved)
}

// Stop ends the renewal of the tokens, and returns when the host is no longer in use.
func (t *Tokens) Stop() {
	t.manager.mu.Lock()
	delete(t.manager.active, t)
	t.manager.mu.Unlock()
	t.mu.Lock()
	t.active, t.pending, t.host = false, nil, Host{}
	if t.cancel != nil {
		t.cancel()
	}
	t.mu.Unlock()
	t.reactions.Wait()
}

// look renews the tokens that are due, and returns when to look again at the latest; zero if nothing falls due by
// itself.
func (t *Tokens) look(ctx context.Context) (next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.active {
		return next
	}
	now, changed := t.manager.config.Now(), false
	for _, s := range t.identities {
		renewed, at := t.renewLocked(s, now)
		changed = changed || renewed
		next = earliest(next, at)
	}
	if changed {
		t.saveLocked()
	}
	if len(t.pending) > 0 && t.cancel == nil {
		ctx, t.cancel = context.WithCancel(ctx)
		t.reactions.Go(func() { t.react(ctx) })
	}
	return next
}

// renewLocked renews the tokens of one identity if they are due. It returns whether the identity's file has a new
// token, and when something is due next.
func (t *Tokens) renewLocked(s *state, now time.Time) (renewed bool, next time.Time) {
	if t.inspect != nil {
		s.out.File = t.inspect(s, now)
	}
	want := t.claims(s, now)
	a := decide(now, s.WorkloadIdentity, want, s.out, t.trusted)
	if a.issue && !now.Before(s.issueAfter) {
		renewed = t.replaceLocked(s, now)
	}
	if a.refused && !s.refused {
		t.logger.Warn("an identity in the task's environment has a removed key or is revoked: "+
			"it is refused until the task is restarted", "identity", s.Name)
	}
	s.refused = a.refused
	acts := s.ChangeMode == "restart" || s.ChangeMode == "signal"
	s.out.Pending = acts && (s.out.Pending || renewed)
	if (s.out.Pending || a.restart) && !now.Before(s.restartAfter) || s.ChangeMode == "signal" && renewed {
		s.restartAfter = now.Add(lookInterval)
		if !s.reacting {
			s.reacting = true
			t.pending = append(t.pending, s)
		}
	}
	switch {
	case a.issue && !renewed:
		return false, s.issueAfter
	case renewed:
		a = decide(now, s.WorkloadIdentity, want, s.out, t.trusted)
	}
	if a.restart || s.out.Pending {
		return renewed, earliest(s.restartAfter, a.next)
	}
	return renewed, a.next
}

// replaceLocked replaces the token in the identity's file, and reports whether it could. A failure is logged once,
// until it ends.
func (t *Tokens) replaceLocked(s *state, now time.Time) bool {
	token, meta, err := t.manager.sign(t.claims(s, now), now)
	if err == nil {
		err = t.writeLocked(s, token, meta)
	}
	if err != nil && !s.failing {
		t.logger.Warn("token not renewed; it is tried again", "identity", s.Name, "error", err)
	}
	if s.failing = err != nil; s.failing {
		s.issueAfter = now.Add(retryInterval)
	}
	return err == nil
}

// react carries out the change_mode of the renewed identities, one after the other. A task that does not run finds the
// new tokens when it starts.
func (t *Tokens) react(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.pending) > 0 && ctx.Err() == nil {
		s := t.pending[0]
		wi, process := s.WorkloadIdentity, t.host.Process
		t.pending = t.pending[1:]
		t.mu.Unlock()
		var err error
		if wi.ChangeMode == "signal" {
			err = process.Signal(ctx, wi.ChangeSignal)
		} else {
			err = process.Restart(ctx, fmt.Sprintf("Identity %q was renewed", wi.Name))
		}
		if err != nil {
			t.logger.Debug("change_mode of a renewed identity failed",
				"identity", wi.Name, "change_mode", wi.ChangeMode, "error", err)
		}
		t.mu.Lock()
		s.reacting = false
		if err == nil {
			s.out.Pending = false
			t.saveLocked()
		}
	}
	t.cancel()
	t.cancel = nil
}

// trusted reports whether the ring has the token's key and the token is not revoked. While the list of revocations
// can't be read, every token is refused, a new one, too; the old one then counts as trusted, because neither a new
// token nor a restart would help.
func (t *Tokens) trusted(m *metadata) bool {
	revoked := func(id string, issuedAt int64) bool {
		if t.task == nil {
			return t.manager.revoked(id, "", identity.RoleOperator, issuedAt)
		}
		return t.manager.revoked(id, t.task.Name, identity.RoleTask, issuedAt)
	}
	return t.manager.config.Keyring.Keys().Has(m.KeyID) &&
		(!revoked(m.ID, m.IssuedAt.Unix()) || revoked("", math.MaxInt64))
}

func (t *Tokens) claims(s *state, now time.Time) identity.Claims {
	return t.manager.claims(t.task, s.WorkloadIdentity, now)
}

// regularFile reports whether there is a regular file that is not empty at a path in a task's directory, in which the
// task may have put anything.
func regularFile(dir, path string) bool {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close()
	info, err := root.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() > 0
}

// variable returns the environment variable of an identity with env = true.
func variable(name string) string {
	if name == identity.DefaultName {
		return "NOMAD_TOKEN"
	}
	return "NOMAD_TOKEN_" + name
}

// file returns the path of the token of an identity with file = true, relative to the task's directory.
func file(wi *api.WorkloadIdentity) string {
	switch {
	case wi.Filepath != "":
		return wi.Filepath
	case wi.Name == identity.DefaultName:
		return filepath.Join("secrets", "nomad_token")
	}
	return filepath.Join("secrets", "nomad_"+wi.Name+".jwt")
}

// Package workload issues, renews and keeps the tokens of one allocation: those of its tasks' identities and the
// operator's. Nomad calls this a workload identity manager. A token in a file is replaced, atomically, when half of its
// life is over and as soon as its key has left the ring. The task then learns of it in the way of its change_mode. A
// good token stays when another process takes over. The package sees neither HTTP requests nor the state of the
// allocation; Host is what a task's runner does for it.
package workload

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
	"taskapi/internal/ptr"
	"taskapi/internal/wake"
)

const (
	// lookInterval is the longest time between two looks at the tokens. Timers stand still while the machine sleeps, and
	// tokens expire.
	lookInterval = 30 * time.Second
	// retryInterval is the pause after a renewal that failed. The old token is then good for half of its life.
	retryInterval = time.Second
)

// Keyring signs tokens and holds the keys that verify them; *identity.Keyring is one.
type Keyring interface {
	identity.KeySource
	Sign(identity.Claims) (string, error)
	// Replaced returns a channel that is closed when the keys change.
	Replaced() <-chan struct{}
}

var _ Keyring = (*identity.Keyring)(nil)

// Revocations says which tokens are refused; *revocation.List is one.
type Revocations interface {
	Revoked(*identity.Claims) bool
	// Changed returns a channel that is closed when other tokens are refused.
	Changed() <-chan struct{}
}

// Config says what the tokens of an allocation claim. All fields are required but Issuer, Revocations, Now, and those
// for extra claims.
type Config struct {
	Keyring Keyring
	Logger  *slog.Logger

	// Revocations are tokens that the API refuses. They are replaced. Nil for none.
	Revocations Revocations

	Region, Namespace, JobID, TaskGroup string
	AllocationID                        string
	Life                                string // the ID of the allocation's present life

	Issuer    string
	Audiences []string      // of identities that name none
	TTL       time.Duration // of identities that have none

	// ExtraClaims are the machine's. Job returns the present version of the job, and Node is the machine; their
	// references stand for parts of both.
	ExtraClaims ExtraClaims
	Job         func() *api.Job
	Node        api.Node

	// Now returns the time; nil: time.Now. Tests move it, and call Renew.
	Now func() time.Time
}

// Manager issues and renews the tokens of one allocation. Its methods may be called at any time, also concurrently.
type Manager struct {
	config Config
	wake   wake.Signal // has Run look at the tokens

	mu     sync.Mutex // guards the field below; no other lock is taken under it
	active map[*Tokens]bool
}

// New returns a manager without tokens.
func New(c Config) *Manager {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Job == nil {
		c.Job = func() *api.Job { return &api.Job{} }
	}
	return &Manager{config: c, wake: wake.New(), active: map[*Tokens]bool{}}
}

// Run renews tokens until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	for ctx.Err() == nil {
		// These come before the look, so that what changes during it causes another look.
		replaced, revoked := m.config.Keyring.Replaced(), (<-chan struct{})(nil)
		if m.config.Revocations != nil {
			revoked = m.config.Revocations.Changed()
		}
		next := m.look(ctx)
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-time.After(next.Sub(m.config.Now())):
		case <-replaced:
		case <-revoked:
		}
	}
	for _, t := range m.tokens() {
		t.reactions.Wait()
	}
}

// Renew renews the tokens that are due, and returns when files are written and tasks are being notified. Run does the
// same, after ClockSet or at the latest half a minute after the clock was moved.
func (m *Manager) Renew(ctx context.Context) { m.look(ctx) }

// look renews the tokens that are due, and returns when to look again.
func (m *Manager) look(ctx context.Context) (next time.Time) {
	next = m.config.Now().Add(lookInterval)
	for _, t := range m.tokens() {
		next = earliest(next, t.look(ctx))
	}
	return next
}

func (m *Manager) tokens() []*Tokens {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.active))
}

// earliest returns the earlier of two times; zero is later than any.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// ClockSet has Run look at all tokens at once, as after the clock was set.
func (m *Manager) ClockSet() { m.wake.Send() }

// revoked reports whether a token of the allocation is revoked.
func (m *Manager) revoked(id, task string, role identity.Role, issuedAt int64) bool {
	return m.config.Revocations != nil && m.config.Revocations.Revoked(&identity.Claims{
		ID: id, AllocationID: m.config.AllocationID, Task: task, Role: role, IssuedAt: issuedAt,
	})
}

// claims returns the claims of a token of a task that is issued now, and for a nil task those of the operator's.
func (m *Manager) claims(task *api.Task, wi *api.WorkloadIdentity, now time.Time) identity.Claims {
	c, name, role, vault := &m.config, "", identity.RoleOperator, vaultOf(task, wi)
	if task != nil {
		name, role = task.Name, identity.RoleTask
	}
	ttl := wi.TTL
	if ttl <= 0 {
		ttl = c.TTL
	}
	at := now.Unix()
	if m.revoked("", name, role, at) {
		at++ // tokens of this second are revoked; verifiers allow a clock to be a second ahead
	}
	return identity.Claims{
		Issuer:       c.Issuer,
		Subject:      identity.Subject(c.Region, c.Namespace, c.JobID, c.TaskGroup, name, wi.Name),
		Audience:     wi.Audience,
		IssuedAt:     at,
		NotBefore:    at,
		ExpiresAt:    now.Add(ttl + time.Second - 1).Unix(), // up to a whole second
		Namespace:    c.Namespace,
		JobID:        c.JobID,
		AllocationID: c.AllocationID,
		Task:         name,
		Role:         role,
		Life:         c.Life,

		VaultRole:       vault.Role,
		VaultNamespace:  ptr.Deref(vault.Namespace),
		ConsulNamespace: m.consulOf(task, wi).Namespace,
		ExtraClaims:     m.extra(task, wi),
	}
}

// Issue issues a token of an identity of a task, which nobody renews: for a login of the task's elsewhere.
func (m *Manager) Issue(task *api.Task, wi *api.WorkloadIdentity) (string, error) {
	now := m.config.Now()
	token, _, err := m.sign(m.claims(task, wi, now), now)
	return token, err
}

// Check returns why no token of an identity of a task can be issued, such as claims that are too long; nil if it can.
// It uses no key ring.
func (m *Manager) Check(task *api.Task, wi *api.WorkloadIdentity) error {
	resolved := *wi
	resolved.Name = cmp.Or(wi.Name, identity.DefaultName)
	resolved.Audience = m.audience(&resolved)
	return identity.CheckSign(m.claims(task, &resolved, m.config.Now()))
}

func (m *Manager) sign(claims identity.Claims, now time.Time) (string, *metadata, error) {
	token, err := m.config.Keyring.Sign(claims)
	if err != nil {
		return "", nil, fmt.Errorf("sign token for %s: %w", claims.Subject, err)
	}
	read, err := identity.Check(token) // tells which key of the ring signed it
	if err != nil {
		return "", nil, fmt.Errorf("sign token for %s: %w", claims.Subject, err)
	}
	meta := describe(&read.Claims, read.KeyID)
	if now.After(meta.IssuedAt) {
		meta.IssuedAt = now.Round(0) // a token's times are those of the clock on the wall
	}
	return token, meta, nil
}

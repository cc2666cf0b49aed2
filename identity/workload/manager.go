// Package workload issues, renews and keeps the tokens of one allocation: those of its tasks' identities and the operator's (Nomad calls
// it a workload identity manager). It promises that a token in a file is replaced, atomically, when half of its life is over and as soon as
// its key has left the ring, that the task then hears of it in the way of its change_mode, and that a good token stays when another process
// takes over. It never sees an HTTP request or the state of the allocation: what a task's runner has to do for it is in Host.
package workload

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
)

const (
	// lookInterval is the longest time between two looks at the tokens: timers stand still while the machine sleeps, and expiry does not.
	lookInterval = 30 * time.Second
	// retryInterval is the pause after a renewal that failed. The old token is good for as long again as it has been.
	retryInterval = time.Second
)

// Keyring signs tokens and has the keys that verify them; *identity.Keyring is one.
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
	// Changed returns a channel that is closed when that changes.
	Changed() <-chan struct{}
}

// Config says what the tokens of an allocation claim. All fields but Issuer, Revocations and Now are required.
type Config struct {
	Keyring Keyring
	Logger  *slog.Logger

	// Revocations are tokens that the door refuses, and that are replaced therefore. Nil for none.
	Revocations Revocations

	Region, Namespace, JobID, TaskGroup string
	AllocationID                        string
	Life                                string // the ID of the allocation's present life

	Issuer    string
	Audiences []string      // of identities that name none
	TTL       time.Duration // of identities that have none

	// Now returns the time; nil: time.Now. Tests move it, and call Renew.
	Now func() time.Time
}

// Manager issues and renews the tokens of one allocation. All of its methods may be called at any time, also concurrently.
type Manager struct {
	config Config
	kick   chan struct{} // something else may be due; capacity 1

	mu     sync.Mutex            // guards the field below; no other lock is taken under it
	active map[*Tokens]time.Time // when to look at each
}

// New returns a manager without tokens.
func New(c Config) *Manager {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Manager{config: c, kick: make(chan struct{}, 1), active: map[*Tokens]time.Time{}}
}

// Run renews tokens until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	replaced, revoked := m.config.Keyring.Replaced(), m.revocationsChanged()
	m.scheduleAll()
	for ctx.Err() == nil {
		m.renew(ctx)
		select {
		case <-ctx.Done():
		case <-m.kick:
		case <-time.After(m.next().Sub(m.config.Now())):
		case <-replaced:
			replaced = m.config.Keyring.Replaced() // before the look: what changes during it is looked at again
			m.scheduleAll()
		case <-revoked:
			revoked = m.revocationsChanged()
			m.scheduleAll()
		}
	}
	for _, t := range m.due(m.config.Now().Add(lookInterval)) {
		t.reactions.Wait()
	}
}

// Renew does what is due for all tokens, and returns when files are written and tasks are being notified. Run does it,
// too, after ClockSet, or at the latest half a minute after the clock was moved.
func (m *Manager) Renew(ctx context.Context) {
	m.scheduleAll()
	m.renew(ctx)
}

func (m *Manager) renew(ctx context.Context) {
	for _, t := range m.due(m.config.Now()) {
		m.schedule(t, earliest(m.config.Now().Add(lookInterval), t.look(ctx)))
	}
}

// due returns the tokens that are to be looked at.
func (m *Manager) due(now time.Time) (due []*Tokens) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, at := range m.active {
		if !now.Before(at) {
			due = append(due, t)
		}
	}
	return due
}

// next returns when the next look is due.
func (m *Manager) next() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.config.Now().Add(lookInterval)
	for _, at := range m.active {
		if at.Before(next) {
			next = at
		}
	}
	return next
}

// earliest returns the earlier of two times; zero is later than any.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// activate has Run look at the tokens, at once and from then on.
func (m *Manager) activate(t *Tokens) {
	m.mu.Lock()
	m.active[t] = time.Time{}
	m.mu.Unlock()
	m.wake()
}

// ClockSet makes Run look at all tokens at once, after the clock was set.
func (m *Manager) ClockSet() {
	m.scheduleAll()
	m.wake()
}

func (m *Manager) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

func (m *Manager) schedule(t *Tokens, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, active := m.active[t]; active {
		m.active[t] = at
	}
}

func (m *Manager) scheduleAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t := range m.active {
		m.active[t] = time.Time{}
	}
}

func (m *Manager) deactivate(t *Tokens) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.active, t)
}

// revocationsChanged returns a channel that is closed when another token is revoked, nil where none can be.
func (m *Manager) revocationsChanged() <-chan struct{} {
	if m.config.Revocations == nil {
		return nil
	}
	return m.config.Revocations.Changed()
}

// revoked reports whether the door refuses a token of the allocation.
func (m *Manager) revoked(id, task string, role identity.Role, issuedAt int64) bool {
	return m.config.Revocations != nil && m.config.Revocations.Revoked(&identity.Claims{
		ID: id, AllocationID: m.config.AllocationID, Task: task, Role: role, IssuedAt: issuedAt,
	})
}

// claims returns what a token says that is issued now.
func (m *Manager) claims(task string, role identity.Role, wi *api.WorkloadIdentity, now time.Time) identity.Claims {
	c := &m.config
	ttl := wi.TTL
	if ttl <= 0 {
		ttl = c.TTL
	}
	at := now.Unix()
	if m.revoked("", task, role, at) {
		at++ // it was revoked within this second what was issued until then: verifiers allow a clock to be a second ahead
	}
	return identity.Claims{
		Issuer:       c.Issuer,
		Subject:      identity.Subject(c.Region, c.Namespace, c.JobID, c.TaskGroup, task, wi.Name),
		Audience:     wi.Audience,
		IssuedAt:     at,
		NotBefore:    at,
		ExpiresAt:    now.Add(ttl + time.Second - 1).Unix(), // up to a whole second
		Namespace:    c.Namespace,
		JobID:        c.JobID,
		AllocationID: c.AllocationID,
		Task:         task,
		Role:         role,
		Life:         c.Life,
	}
}

// sign issues a token.
func (m *Manager) sign(claims identity.Claims, now time.Time) (string, *metadata, error) {
	token, err := m.config.Keyring.Sign(claims)
	if err != nil {
		return "", nil, fmt.Errorf("sign token for %s: %w", claims.Subject, err)
	}
	read, err := identity.Check(token) // says which key the ring has signed it with
	if err != nil {
		return "", nil, fmt.Errorf("sign token for %s: %w", claims.Subject, err)
	}
	if issued := time.Unix(claims.IssuedAt, 0); now.Before(issued) {
		now = issued
	}
	return token, &metadata{
		ID:        read.Claims.ID,
		KeyID:     read.KeyID,
		Audience:  claims.Audience,
		IssuedAt:  now.Round(0), // a token's times are those of the clock on the wall
		ExpiresAt: time.Unix(claims.ExpiresAt, 0),
	}, nil
}

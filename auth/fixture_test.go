package auth_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	allocID = "5fc98185-17ff-26bc-a802-0c74fa471c99"
	otherID = "11111111-2222-3333-4444-555555555555"
	hour    = time.Hour
)

var (
	web           = auth.Owner{AllocationID: allocID, Task: "web", UID: 1000}
	db            = auth.Owner{AllocationID: allocID, Task: "db", UID: 1000}
	operator      = auth.Owner{AllocationID: allocID, UID: 1000}
	peer          = auth.Peer{UID: 1000, GID: 1000, PID: 4242}
	discardLogger = slog.New(slog.DiscardHandler)

	unfelt = auth.Limits{Set: limitset.Set{ // limits that no test runs into by accident
		FailedLookups: limitset.Off, AllFailedLookups: limitset.Off, Refusals: limitset.Off,
	}}
)

// allocations are allocations that a test can end.
type allocations struct {
	states sync.Map
	is     atomic.Pointer[auth.Allocation] // nil: demo
}

func (a *allocations) set(id string, l auth.Liveness) { a.states.Store(id, l) }

// demo is what tokens of every allocation must say unless a test says otherwise.
var demo = auth.Allocation{Region: "global", Namespace: "default", JobID: "demo", TaskGroup: "web", Life: "this life"}

// become makes the allocation another one, or begin another life.
func (a *allocations) become(next auth.Allocation) { a.is.Store(&next) }

func (a *allocations) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	l, _ := a.states.Load(id)
	known, _ := l.(auth.Liveness)
	if now := a.is.Load(); now != nil {
		return now, known
	}
	return &demo, known
}

// countingVerifier counts signature checks, and can make them wait.
type countingVerifier struct {
	*identity.Verifier
	checks atomic.Int64
	gate   chan struct{} // nil: open
}

func (v *countingVerifier) VerifyChecked(u *identity.Unverified, now time.Time) (*identity.Verified, error) {
	v.checks.Add(1)
	if v.gate != nil {
		<-v.gate
	}
	return v.Verifier.VerifyChecked(u, now)
}

// fixture is an authenticator with all that it needs: a key ring, an allocation that lives, and ears for what it says.
type fixture struct {
	tb            testing.TB
	ring          *identity.Keyring
	verifier      *countingVerifier
	allocs        *allocations
	authenticator *auth.Authenticator
	log           *lockedBuffer
	audit         *lockedBuffer
	auditLog      *auth.AuditLog
	refusals      *auth.Refusals
}

func newFixture(tb testing.TB, change ...func(*auth.Config)) *fixture {
	tb.Helper()
	ring := identitytest.Keyring(tb)
	verifier := must.Get(identity.NewVerifier(identity.VerifierConfig{Local: ring}))(tb)
	w := &fixture{
		tb: tb, ring: ring, verifier: &countingVerifier{Verifier: verifier}, allocs: new(allocations),
		log: new(lockedBuffer), audit: new(lockedBuffer), refusals: new(auth.Refusals),
	}
	w.allocs.set(allocID, auth.Live)
	w.auditLog = newAuditLog(tb, auth.AuditConfig{}, w.audit)
	config := auth.Config{
		Verifier: w.verifier, Allocations: w.allocs, Keys: []identity.KeySource{ring}, Limits: unfelt,
		Logger: slog.New(slog.NewTextHandler(w.log, nil)), Auditor: w.auditLog,
		Refusals: w.refusals,
	}
	for _, f := range change {
		f(&config)
	}
	w.authenticator = must.Get(auth.NewAuthenticator(config))(tb)
	return w
}

// newAuditLog returns an audit log that writes to w, and is closed with the test.
func newAuditLog(tb testing.TB, config auth.AuditConfig, w io.Writer) *auth.AuditLog {
	tb.Helper()
	config.Open = func() (io.WriteCloser, error) { return nopCloser{w}, nil }
	log := must.Get(auth.NewAuditLog(config))(tb)
	tb.Cleanup(func() { _ = log.Close() })
	return log
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// claimsOf are good claims for the owner of a socket, for an hour from now.
func claimsOf(owner auth.Owner) identity.Claims {
	now := time.Now().Unix()
	c := identity.Claims{
		Subject:  identity.Subject("global", "default", "demo", "web", owner.Task, identity.DefaultName),
		Audience: []string{identity.DefaultAudience},
		IssuedAt: now, NotBefore: now, ExpiresAt: now + 3600,
		Namespace: "default", JobID: "demo", AllocationID: owner.AllocationID, Task: owner.Task, Life: demo.Life,
	}
	if owner.Task == "" {
		c.Role = identity.RoleOperator
	}
	return c
}

// admitted is must.Get for a request: it ends the test if there is a denial. A nil *auth.Denial is no nil error.
func admitted(p *auth.Principal, denial *auth.Denial) func(must.TB) *auth.Principal {
	return func(tb must.TB) *auth.Principal {
		tb.Helper()
		if denial != nil {
			tb.Fatal(denial)
		}
		return p
	}
}

// token returns a good token for the owner.
func (w *fixture) token(owner auth.Owner) string {
	return identitytest.Sign(w.tb, w.ring, claimsOf(owner))
}

// with returns a token whose claims were good before the change.
func (w *fixture) with(owner auth.Owner, change func(*identity.Claims)) string {
	c := claimsOf(owner)
	change(&c)
	return identitytest.Sign(w.tb, w.ring, c)
}

// forge replaces the signature by one that the key did not make; n makes it one of many.
func forge(token string, n int) string {
	var signature [ed25519.SignatureSize]byte
	copy(signature[:], fmt.Sprintf("forged %d", n))
	return token[:strings.LastIndexByte(token, '.')+1] + base64.RawURLEncoding.EncodeToString(signature[:])
}

// unknownKey returns the token under a key ID that nobody has.
func unknownKey(token string, n int) string {
	header := fmt.Sprintf(`{"alg":"EdDSA","kid":"nobodys-%d","typ":"JWT"}`, n)
	return base64.RawURLEncoding.EncodeToString([]byte(header)) + token[strings.IndexByte(token, '.'):]
}

func request(token string) *http.Request {
	r, err := http.NewRequest(http.MethodGet, "http://socket/v1/agent/health", nil)
	if err != nil {
		panic(err)
	}
	if token != "" {
		r.Header.Set("X-Nomad-Token", token)
	}
	return r
}

// ask returns what the authenticator says to the token on the owner's socket.
func (w *fixture) ask(token string, owner auth.Owner) auth.Reason {
	w.tb.Helper()
	return w.askAs(token, owner, peer)
}

func (w *fixture) askAs(token string, owner auth.Owner, peer auth.Peer) auth.Reason {
	w.tb.Helper()
	p, denial := w.authenticator.Authenticate(request(token), owner, peer)
	if (p == nil) == (denial == nil) {
		w.tb.Fatalf("got %v and %v", p, denial)
	}
	if denial != nil {
		return denial.Reason
	}
	return auth.NotRefused
}

// expect fails the test unless the authenticator says that.
func (w *fixture) expect(what, token string, owner auth.Owner, want auth.Reason) {
	w.tb.Helper()
	if got := w.ask(token, owner); got != want {
		w.tb.Errorf("%s: got %s, want %s", what, got, want)
	}
}

// lockedBuffer is a buffer that many may write to.
type lockedBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	deaf bool
}

// discard makes it forget what is written from now on.
func (b *lockedBuffer) discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deaf = true
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deaf {
		return len(p), nil
	}
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *lockedBuffer) lines() []string { return strings.Split(strings.TrimSpace(b.String()), "\n") }

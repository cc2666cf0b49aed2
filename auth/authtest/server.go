package authtest

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/handlers"
	"taskapi/handlers/faults"
	"taskapi/handlers/node"
	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/peercred"
)

// TB is the part of *testing.T, B and F that a Server needs. Other test frameworks can implement it.
type TB interface {
	Helper()
	Cleanup(func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Server is taskapi's API for the allocations of some jobs: each job has one allocation, and each task of it a socket.
// A Server has all methods of a Task, for the first task of the first job. All methods may be called at any time, also
// concurrently. An error of a method fails the test.
type Server struct {
	*firstTask
	tb            TB
	config        config
	dir           string
	ring          *identity.Keyring
	foreign       badtokens.Key // of another issuer, whom the server trusts
	authenticator authenticator
	served        handlers.Config // of each allocation's API, but for its events
	allocs        allocs
	tasks         []*Task
	record        requests
	faults        faults.Set
	cluster       *memory.Store
	variables     *variables.Service
	registry      *registry.Registry

	ahead atomic.Int64 // how far the clock was moved, in nanoseconds

	background sync.WaitGroup
	stop       context.CancelFunc
	running    context.Context //nolint:containedctx // of the goroutines that close ends
	revoked    *revocation.List

	mu     sync.Mutex // guards the fields below, and the policy and the limits of config
	jwks   *httptest.Server
	denied map[string][]auth.Capability // by task
}

type firstTask = Task

// another is the iss of the foreign issuer.
const another = "https://another-issuer.example"

// NewServer starts a server, which is closed with the test.
func NewServer(tb TB, options ...Option) *Server {
	tb.Helper()
	s := &Server{tb: tb, allocs: allocs{}, denied: map[string][]auth.Capability{}}
	for _, o := range options {
		o.apply(&s.config)
	}
	s.check(s.start(), "")
	return s
}

// check fails the test if there is an error. doing says in which step, as for TB.Fatalf.
func (s *Server) check(err error, doing string, args ...any) {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatalf("authtest: "+doing+"%v", append(args, err)...)
	}
}

func (s *Server) start() (err error) {
	if err := s.config.complete(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "authtest"); err != nil { // a test's own directory can be too long for a socket
		return err
	}
	s.tb.Cleanup(func() { _ = os.RemoveAll(s.dir) })
	s.running, s.stop = context.WithCancel(context.Background())
	s.tb.Cleanup(s.close)
	if s.ring, err = identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(s.dir, "keyring")}); err != nil {
		return err
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	s.foreign = badtokens.NewKey("another-issuers-key", key)
	if s.config.oidc {
		s.config.issuer = s.JWKSServer()
	}
	s.revoked, err = revocation.Open(revocation.Config{Dir: filepath.Join(s.dir, "revocations"), Now: s.Now})
	if err != nil {
		return err
	}
	limits, err := s.openAuthenticator()
	if err != nil {
		return err
	}
	if err := s.openShared(); err != nil {
		return err
	}
	s.served = handlers.Config{
		Server: handlers.Server{
			Authenticator: &s.authenticator, Allocs: s.allocs, Logger: discard,
			PeerOf: func(c net.Conn) (auth.Peer, error) { return peercred.Of(c.(*net.UnixConn)) },
			Limits: limits, Auditor: &s.record, AuditReads: true, Fault: s.faults.Next,
		},
		Node:      handlers.Node{Agent: agent, JWKS: func() ([]byte, error) { return s.ring.JWKS(), nil }},
		Variables: s.variables, Services: s.registry,
		TaskVariables: func(namespace, job string) handlers.Variables { return s.variables.OfTask(namespace, job) },
		SigningKeyID:  func() string { return s.ring.Active().ID },
	}
	for i, job := range s.config.jobs {
		if err := s.run(i, job); err != nil {
			return fmt.Errorf("job %s: %w", job.ID, err)
		}
	}
	return nil
}

// close stops everything that NewServer has started, and waits for it.
func (s *Server) close() {
	s.faults.Clear()
	for _, t := range s.tasks {
		t.tokens.Stop()
	}
	s.stop()
	s.background.Wait()
	if s.revoked != nil {
		if err := s.revoked.Close(); err != nil {
			s.tb.Errorf("authtest: %v", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jwks != nil {
		s.jwks.Close()
	}
}

var agent = node.Agent{
	NomadVersion: "2.0.6", Region: region, Datacenter: datacenter,
	NodeID: "a7e57a7e-57a7-457a-a7e5-7a7e57a7e57a", NodeName: "authtest",
}

const (
	region     = "global"
	datacenter = "dc1"
)

// serve answers on a new socket of an allocation until the server is closed.
func (s *Server) serve(a *allocation, path string, owner auth.Owner) error {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s.background.Go(func() {
		if err := a.api.Serve(s.running, listener, owner); err != nil {
			s.tb.Errorf("authtest: %v", err)
		}
	})
	return nil
}

// Task returns a task by its name, or, if several jobs have a task of that name, by "job/task" or "namespace/job/task".
func (s *Server) Task(name string) *Task {
	s.tb.Helper()
	var known []string
	for _, t := range s.tasks {
		if t.name == "" { // the operator
			continue
		}
		full := t.alloc.claims.Namespace + "/" + t.alloc.claims.JobID + "/" + t.name
		if strings.HasSuffix("/"+full, "/"+name) {
			return t
		}
		known = append(known, full)
	}
	s.tb.Fatalf("authtest: no task %q: there are %s", name, strings.Join(known, ", "))
	return nil
}

// Operator returns the operator of the first job's allocation, which has a socket and tokens like a task.
func (s *Server) Operator() *Task { return s.alloc.operator }

// Now returns the server's time.
func (s *Server) Now() time.Time {
	now := s.config.frozen
	if now.IsZero() {
		now = time.Now()
	}
	return now.Add(time.Duration(s.ahead.Load()))
}

// Advance moves the server's clock; a negative duration moves it back. Tokens expire, and limits fill up again. Token
// files are renewed when half of a token's life is over, and locks on variables that nobody has renewed end, both
// before Advance returns. A stream whose token has expired ends with its next frame or, without one, within ten
// seconds. The times in answers and records stay those of the machine.
func (s *Server) Advance(d time.Duration) {
	s.tb.Helper()
	s.ahead.Add(int64(d))
	s.renew()
	if err := s.variables.EndLocks(s.running); err != nil && s.running.Err() == nil {
		s.tb.Errorf("authtest: end locks: %v", err)
	}
}

func (s *Server) renew() {
	for _, a := range s.allocs {
		a.manager.Renew(s.running)
	}
}

// RotateKey makes a new key that signs from now on, and returns the ID of the key before. That key still verifies, so
// its tokens stay good.
func (s *Server) RotateKey() (before string) {
	s.tb.Helper()
	before = s.ring.Active().ID
	_, err := s.ring.Rotate()
	s.check(err, "")
	return before
}

// RemoveKey removes a key that does not sign. The tokens that it has signed are refused from now on, as key_removed.
// When it returns, the tasks' token files have new tokens.
func (s *Server) RemoveKey(id string) {
	s.tb.Helper()
	s.check(s.ring.Remove(id), "")
	s.renew()
}

// ReplaceKey rotates the key and removes the one before, as after a leak: every earlier token is refused, and the
// tasks' token files have new tokens.
func (s *Server) ReplaceKey() {
	s.tb.Helper()
	s.RemoveKey(s.RotateKey())
}

// PublicKey returns the key that signs now, and its ID.
func (s *Server) PublicKey() (id string, key ed25519.PublicKey) {
	id, signer := s.ring.Signer()
	return id, signer.Public().(ed25519.PublicKey)
}

// JWKSServer returns the URL of a server on the loopback interface. It has the key set under /.well-known/jwks.json,
// and the document of OpenID discovery under /.well-known/openid-configuration.
func (s *Server) JWKSServer() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jwks == nil {
		s.jwks = httptest.NewServer(http.HandlerFunc(s.wellKnown))
	}
	return s.jwks.URL
}

// Paths on the JWKSServer.
const (
	jwksPath      = "/.well-known/jwks.json"
	discoveryPath = "/.well-known/openid-configuration"
)

// JWKSURL returns the URL of the current key set.
func (s *Server) JWKSURL() string { return s.JWKSServer() + jwksPath }

func (s *Server) wellKnown(w http.ResponseWriter, r *http.Request) {
	var document []byte
	switch r.URL.Path {
	case jwksPath:
		document = s.ring.JWKS()
	case discoveryPath:
		issuer := "http://" + r.Host
		document = identity.OpenIDConfiguration(issuer, issuer+jwksPath)
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(document) // the client may be gone
}

var discard = slog.New(slog.DiscardHandler)

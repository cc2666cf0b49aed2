package authtest

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/identity"
)

// door is the authenticator as it is now: another policy and other limits take another one.
type door struct {
	now atomic.Pointer[auth.Authenticator]
}

var _ handlers.Authenticator = (*door)(nil)

func (d *door) Authenticate(r *http.Request, owner auth.Owner, peer auth.Peer) (*auth.Principal, *auth.Denial) {
	return d.now.Load().Authenticate(r, owner, peer)
}

func (d *door) Recheck(r *http.Request, p *auth.Principal, owner auth.Owner, peer auth.Peer) *auth.Denial {
	return d.now.Load().Recheck(r, p, owner, peer)
}

func (d *door) Authorize(p *auth.Principal, anyOf auth.CapabilitySet) *auth.Denial {
	return d.now.Load().Authorize(p, anyOf)
}

// openDoor makes the authenticator anew.
func (s *Server) openDoor() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	source := s.policy
	for task, capabilities := range s.denied {
		var names []string
		for _, c := range capabilities {
			names = append(names, fmt.Sprintf("%q", c))
		}
		source += fmt.Sprintf("\ntask %q {\n  deny = [%s]\n}\n", task, strings.Join(names, ", "))
	}
	var policy *auth.Policy
	if source != "" {
		parsed, err := auth.ParsePolicy("policy", []byte(source))
		if err != nil {
			return err
		}
		policy = parsed
	}
	foreign, err := s.foreignKeys()
	if err != nil {
		return err
	}
	verifier, err := identity.NewVerifier(identity.VerifierConfig{
		Local: s.ring, Foreign: []identity.Issuer{{Keys: foreign, Name: another}}, Audiences: s.config.audience,
	})
	if err != nil {
		return err
	}
	next, err := auth.NewAuthenticator(auth.Config{
		Verifier: verifier, Allocations: liveness(s.allocs), Logger: s.config.logger, Policy: policy, Keys: []identity.KeySource{s.ring},
		Auditor: &s.record, Limits: s.limits, Now: s.Now,
	})
	if err != nil {
		return err
	}
	s.door.now.Store(next)
	return nil
}

// SetPolicy replaces the policy, and what Deny has denied, from the next request on.
func (s *Server) SetPolicy(hcl string) {
	s.tb.Helper()
	s.mu.Lock()
	s.policy = hcl
	clear(s.denied)
	s.mu.Unlock()
	s.reopen()
}

// SetLimits replaces the limits, from the next request on; nobody has used any of the new ones.
func (s *Server) SetLimits(l auth.Limits) {
	s.tb.Helper()
	s.mu.Lock()
	s.limits = l
	s.mu.Unlock()
	s.reopen()
}

func (s *Server) reopen() {
	s.tb.Helper()
	if err := s.openDoor(); err != nil {
		s.tb.Fatalf("authtest: %v", err)
	}
}

// Deny takes capabilities from tasks of the task's name, from the next request on. A policy that has a block for the task has to say so
// itself: SetPolicy.
func (t *Task) Deny(capabilities ...auth.Capability) {
	t.server.tb.Helper()
	s := t.server
	s.mu.Lock()
	s.denied[t.name] = append(s.denied[t.name], capabilities...)
	s.mu.Unlock()
	s.reopen()
}

package authtest

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers"
	"taskapi/identity"
	"taskapi/internal/slice"
)

// authenticator holds the current auth.Authenticator, which is replaced when policy or limits change.
type authenticator struct {
	now atomic.Pointer[auth.Authenticator]
}

var _ handlers.Authenticator = (*authenticator)(nil)

func (a *authenticator) Authenticate(
	r *http.Request, owner auth.Owner, peer auth.Peer,
) (*auth.Principal, *auth.Denial) {
	return a.now.Load().Authenticate(r, owner, peer)
}

func (a *authenticator) Recheck(r *http.Request, p *auth.Principal, owner auth.Owner, peer auth.Peer) *auth.Denial {
	return a.now.Load().Recheck(r, p, owner, peer)
}

func (a *authenticator) Authorize(p *auth.Principal, anyOf auth.CapabilitySet) *auth.Denial {
	return a.now.Load().Authorize(p, anyOf)
}

func (s *Server) openAuthenticator() (limitset.Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	policy, err := s.parsePolicyLocked()
	if err != nil {
		return limitset.Set{}, err
	}
	standard := limitset.Default()
	standard.Changes = limitset.Off // no audit log fills up here
	limits, err := policy.Limits(standard).With(s.config.limits)
	if err == nil {
		err = limits.Check()
	}
	if err != nil {
		return limitset.Set{}, err
	}
	foreign, err := s.foreign.KeySet()
	if err != nil {
		return limitset.Set{}, err
	}
	verifier, err := identity.NewVerifier(identity.VerifierConfig{
		Local: s.ring, Foreign: []identity.Issuer{{Keys: foreign, Name: another}}, Audiences: s.config.audience,
	})
	if err != nil {
		return limitset.Set{}, err
	}
	next, err := auth.NewAuthenticator(auth.Config{
		Verifier: verifier, Keys: []identity.KeySource{s.ring},
		Allocations: s.allocs, Logger: discard, Policy: policy,
		Revocations: s.revoked, Auditor: &s.record, Now: s.Now, Limits: auth.Limits{Set: limits},
	})
	if err != nil {
		return limitset.Set{}, err
	}
	s.authenticator.now.Store(next)
	return limits, nil
}

// parsePolicyLocked returns the policy without the capabilities that Deny has taken, nil for none.
func (s *Server) parsePolicyLocked() (*auth.Policy, error) {
	source := s.config.policy
	if _, ok := auth.Preset(source); ok {
		source = fmt.Sprintf("preset = %q\n", source)
	} else if source != "" && !strings.ContainsAny(source, "={") {
		return nil, fmt.Errorf("the policy %q is no preset: write local, nomad, or the text of a policy file", source)
	}
	for task, capabilities := range s.denied {
		names := slice.Map(capabilities, func(c auth.Capability) string { return fmt.Sprintf("%q", c) })
		source += fmt.Sprintf("\ntask %q {\n  deny = [%s]\n}\n", task, strings.Join(names, ", "))
	}
	if source == "" {
		return nil, nil
	}
	return auth.ParsePolicy("policy", []byte(source))
}

// SetPolicy replaces the policy, from the next request on, and drops the effect of Deny. See Policy.
func (s *Server) SetPolicy(text string) {
	s.tb.Helper()
	s.mu.Lock()
	s.config.policy = text
	clear(s.denied)
	s.mu.Unlock()
	s.reopen()
}

// SetLimits replaces the limits of look-ups, refusals and requests, from the next request on: see Limits. Nothing is
// counted against the new limits yet. The numbers of streams and waiting queries stay.
func (s *Server) SetLimits(text string) {
	s.tb.Helper()
	s.mu.Lock()
	s.config.limits = text
	s.mu.Unlock()
	s.reopen()
}

func (s *Server) reopen() {
	s.tb.Helper()
	_, err := s.openAuthenticator()
	s.check(err, "")
}

// Deny takes capabilities from all tasks of the task's name, from the next request on. If the policy has a block for
// the task, use SetPolicy instead.
func (t *Task) Deny(capabilities ...auth.Capability) {
	t.server.tb.Helper()
	s := t.server
	s.mu.Lock()
	s.denied[t.name] = append(s.denied[t.name], capabilities...)
	s.mu.Unlock()
	s.reopen()
}

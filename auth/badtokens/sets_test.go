package badtokens_test

import (
	"regexp"
	"testing"
	"time"

	"taskapi/auth/badtokens"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

// TestSets has the token of each bad set refused, together with the set or without. The same tokens would be good if
// nothing were wrong with the set, but for those that no real key can sign.
func TestSets(t *testing.T) {
	now := time.Now()
	name, seen := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`), map[string]bool{}
	sets := badtokens.Sets(now, claims(now))
	if len(sets) < 15 {
		t.Fatalf("%d sets", len(sets))
	}
	for _, s := range sets {
		if !name.MatchString(s.Name) || seen[s.Name] || s.Wrong == "" {
			t.Errorf("%q is no name, is there twice, or says nothing", s.Name)
		}
		seen[s.Name] = true
		set, err := identity.ParseJWKS([]byte(s.Document))
		if err != nil {
			set = nil // as a source has it that has never been good
		}
		v := must.Get(identity.NewVerifier(identity.VerifierConfig{
			Local: identitytest.Keyring(t), Foreign: []identity.Issuer{{Keys: set, Name: issuer}}}))(t)
		if _, err := v.Verify(s.Token, now); err == nil {
			t.Errorf("%s: the token is accepted: %s", s.Name, s.Wrong)
		}
	}
}

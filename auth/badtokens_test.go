package auth_test

import (
	"testing"
	"time"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/identity"
	"taskapi/identity/identitytest"
)

// TestBadTokens are all refused, whatever is wrong with them, the second time as well as the first, in the same words.
func TestBadTokens(t *testing.T) {
	issuer, now := identitytest.NewIssuer("another", 'a'), time.Now()
	verifier, err := identity.NewVerifier(identity.VerifierConfig{
		Local: identitytest.Keyring(t), Foreign: []identity.Issuer{{Keys: issuer.KeySet(t)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	allocs := &allocations{}
	allocs.set(allocID, auth.Live)
	authenticator, err := auth.NewAuthenticator(auth.Config{Verifier: verifier, Allocations: allocs, Limits: unfelt, Logger: discardLogger})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range identitytest.BadTokens(issuer, now) {
		if bad.Token == "" {
			continue // that is none: TestTokens
		}
		for _, when := range []string{"first", "second"} {
			principal, denial := authenticator.Authenticate(request(bad.Token), web, peer)
			if principal != nil || denial == nil || denial.Kind != apierror.Forbidden {
				t.Errorf("%s, the %s time: %+v, %+v, want Forbidden", bad.Name, when, principal, denial)
			}
		}
	}
}

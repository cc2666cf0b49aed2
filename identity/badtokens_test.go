package identity_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"taskapi/identity"
	"taskapi/identity/identitytest"
)

func TestBadTokens(t *testing.T) {
	f := identitytest.NewIssuer("forger-1", 'f')
	v := newVerifier(t, identity.VerifierConfig{Local: identitytest.Keyring(t), Foreign: []identity.Issuer{{Keys: f.KeySet(t)}}})
	if _, err := v.Verify(f.Token(f.Header(""), identitytest.GoodClaims(epoch, "")), epoch); err != nil {
		t.Fatal("the good token that the bad ones are made of:", err)
	}
	tokens := identitytest.BadTokens(f, epoch)
	if len(tokens) < 73 {
		t.Fatalf("%d bad tokens, want at least the 73 that golang-jwt was measured with", len(tokens))
	}
	met := map[identity.Reason]bool{}
	for _, bad := range tokens {
		t.Run(bad.Name, func(t *testing.T) {
			verified, err := v.Verify(bad.Token, epoch)
			reason, ok := identity.ReasonOf(err)
			if !ok || reason != bad.Reason || verified != nil {
				t.Fatalf("got %+v and %v, want reason %s", verified, err, bad.Reason)
			}
			met[reason] = true
			if _, err := identity.Check(bad.Token); (err != nil) != structural(reason) {
				t.Errorf("Check: %v, want an error exactly for a structural reason, and this is %s", err, reason)
			}
			for segment := range strings.SplitSeq(bad.Token, ".") {
				if len(segment) > 8 && strings.Contains(err.Error(), segment[:8]) {
					t.Errorf("error %q quotes the token", err)
				}
			}
		})
	}
	for _, reason := range everyReason(t) {
		if !met[reason] && reason != identity.ReasonIssuer { // which takes another configuration: TestIssuers
			t.Errorf("no bad token for reason %s", reason)
		}
	}
}

// everyReason reads the constants in the source: a list in a test would go on without those that are added.
func everyReason(t *testing.T) []identity.Reason {
	t.Helper()
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	var all []identity.Reason
	for _, constant := range regexp.MustCompile(`(?m)^\tReason\w+ +Reason = "(\w+)"`).FindAllSubmatch(source, -1) {
		reason := identity.Reason(constant[1])
		if slices.Contains(all, reason) {
			t.Errorf("two reasons are called %s", reason)
		}
		all = append(all, reason)
	}
	if len(all) < 14 {
		t.Fatalf("found the reasons %q", all)
	}
	return all
}

// structural reports whether a token's form alone is enough for the reason.
func structural(r identity.Reason) bool {
	switch r {
	case identity.ReasonTooLong, identity.ReasonMalformed, identity.ReasonHeader, identity.ReasonAlgorithm, identity.ReasonKeyID, identity.ReasonClaims:
		return true
	}
	return false
}

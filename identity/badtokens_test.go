package identity_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/identity"
	"taskapi/internal/must"
)

// badToken is a token of the catalogue, and why this package refuses it.
type badToken struct {
	name, token string
	reason      identity.Reason
}

// badTokens returns those of the catalogue whose fault this package can see: it knows no allocation.
func badTokens(tb testing.TB, f tokenIssuer) []badToken {
	tb.Helper()
	good := badtokens.Good{Key: badtokens.NewKey(f.ID, f.Key()), Now: epoch, Claims: identity.Claims{
		ID:      "j",
		Subject: identity.Subject("global", "default", "shop", "group", "web", identity.DefaultName),
		Issuer:  "https://nomad.example",
		Audience: []string{
			identity.DefaultAudience,
		},
		IssuedAt:     epoch.Unix(),
		NotBefore:    epoch.Unix(),
		ExpiresAt:    epoch.Unix() + 3600,
		Namespace:    "default",
		JobID:        "shop",
		AllocationID: "5fc98185-17ff-26bc-a802-0c74fa471c99",
		Task:         "web",
		Life:         "this life",
	}}
	var all []badToken
	for _, k := range badtokens.All() {
		reason := identity.Reason(k.Reason.String())
		switch {
		case k.Reason > auth.WrongRole || k.Foreign:
			continue
		case k.Reason == auth.NoToken:
			reason = identity.ReasonMalformed
		}
		token, err := k.Token(good)
		if errors.Is(err, badtokens.ErrNotApplicable) {
			continue // it takes two keys
		}
		must.OK(tb, err)
		all = append(all, badToken{k.Name, token, reason})
	}
	return all
}

// TestBadTokens: the reason of each is its own, and says nothing of the token; a structural one takes the token alone.
func TestBadTokens(t *testing.T) {
	f := newIssuer("forger-1", 'f')
	v := newVerifier(t, identity.VerifierConfig{Local: f.KeySet(t)})
	tokens := badTokens(t, f)
	if len(tokens) < 73 {
		t.Fatalf("%d bad tokens, want at least the 73 that golang-jwt was measured with", len(tokens))
	}
	met := map[identity.Reason]bool{}
	for _, bad := range tokens {
		t.Run(bad.name, func(t *testing.T) {
			verified, err := v.Verify(bad.token, epoch)
			reason, ok := identity.ReasonOf(err)
			if !ok || reason != bad.reason || verified != nil {
				t.Fatalf("got %+v and %v, want reason %s", verified, err, bad.reason)
			}
			met[reason] = true
			// An alg that is not the key's, and a missing exp, take a look at the key and its issuer.
			if _, err := identity.Check(bad.token); (err != nil) != structural(reason) &&
				bad.name != "alg-es256" && bad.name != "exp-missing" {
				t.Errorf("Check: %v, want an error exactly for a structural reason, and this is %s", err, reason)
			}
			for segment := range strings.SplitSeq(bad.token, ".") {
				if len(segment) > 8 && strings.Contains(err.Error(), segment[:8]) {
					t.Errorf("error %q quotes the token", err)
				}
			}
		})
	}
	for _, reason := range everyReason(t) {
		if !met[reason] && reason != identity.ReasonIssuer && reason != identity.ReasonRole { // of other issuers: TestIssuers
			t.Errorf("no bad token for reason %s", reason)
		}
	}
}

// everyReason reads the constants in the source: a list in a test would go on without those that are added.
func everyReason(t *testing.T) []identity.Reason {
	t.Helper()
	source := must.Read(t, "reason.go")
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
	case identity.ReasonTooLong, identity.ReasonMalformed, identity.ReasonHeader, identity.ReasonAlgorithm,
		identity.ReasonKeyID, identity.ReasonClaims:
		return true
	}
	return false
}

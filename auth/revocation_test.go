package auth_test

import (
	"path/filepath"
	"testing"
	"time"

	"taskapi/auth"
	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/must"
)

// TestRevokedTokens: a token is refused on the very next request once it is revoked, by a list that another has open,
// however warm the cache is; so is a request that waits. Others go on, and a token that is issued afterwards is good.
func TestRevokedTokens(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "revocations")
	mine := must.Get(revocation.Open(revocation.Config{Dir: dir}))(t)
	defer mine.Close()
	theirs := must.Get(revocation.Open(revocation.Config{Dir: dir}))(t)
	defer theirs.Close()
	revoke := func(r revocation.Rule) {
		t.Helper()
		must.Get(theirs.Add(r))(t)
	}
	w := newFixture(t, func(c *auth.Config) { c.Revocations = mine })
	now := time.Now().Unix()
	stolen := w.with(web, func(c *identity.Claims) { c.ID = "stolen" })
	old := w.with(web, func(c *identity.Claims) { c.IssuedAt = now - 10 })
	young := w.with(web, func(c *identity.Claims) { c.IssuedAt = now - 1 })
	others := w.with(db, func(c *identity.Claims) { c.IssuedAt = now - 10 })
	for _, token := range []string{stolen, old, young} {
		w.expect("before", token, web, auth.NotRefused)
	}
	waiting, _ := w.authenticator.Authenticate(request(stolen), web, peer)

	revoke(revocation.Rule{TokenID: "stolen"})
	w.expect("revoked", stolen, web, auth.Revoked)
	if denial := w.authenticator.Recheck(request(stolen), waiting, web, peer); denial == nil ||
		denial.Reason != auth.Revoked {
		t.Errorf("a request that waits with a revoked token: %v", denial)
	}
	w.expect("another one", old, web, auth.NotRefused)

	revoke(revocation.Rule{Task: "web", Before: now - 5})
	w.expect("issued before", old, web, auth.Revoked)
	w.expect("issued after", young, web, auth.NotRefused)
	w.expect("of another task", others, db, auth.NotRefused)
	revoke(revocation.Rule{Before: now - 5})
	w.expect("of every task", others, db, auth.Revoked)
	w.expect("never seen before", w.with(web, func(c *identity.Claims) { c.IssuedAt = now - 6 }), web, auth.Revoked)
	if n := w.authenticator.Stats().Refused[auth.Revoked]; n != 5 {
		t.Errorf("%d refusals were counted, want 5", n)
	}
	if auth.Revoked.String() != "revoked" || auth.Revoked.Status() != 403 {
		t.Errorf("%s, %d", auth.Revoked, auth.Revoked.Status())
	}
	if lines := w.audit.lines(); len(lines) == 0 {
		t.Error("nothing was audited")
	}
}

package auth_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/identity"
)

// TestOperatorSecrets: a secret is good where the token that it stands for is, on the operator's socket alone, and for
// nobody whom that socket does not serve. Guesses are counted as failed look-ups, and don't shut the holder of one out.
func TestOperatorSecrets(t *testing.T) {
	tokens, now := map[string]string{}, time.Now()
	w := newFixture(t, func(c *auth.Config) {
		c.OperatorSecret = func(secret string) (string, bool) { token, known := tokens[secret]; return token, known }
		c.Limits.FailedLookups = limitset.Default().FailedLookups
		c.Limits.RefusalDelay = time.Nanosecond
		c.Now = func() time.Time { return now }
	})
	secretOf := func(token string) string {
		secret := uuid.NewString()
		tokens[secret] = token
		return secret
	}
	mine := secretOf(w.token(operator))
	w.expect("the operator's", mine, operator, auth.NotRefused)
	w.expect("on a task's socket", mine, web, auth.Malformed)
	w.expect("of a task's token", secretOf(w.token(web)), operator, auth.WrongSocket)
	if got := w.askAs(mine, operator, auth.Peer{UID: 77, GID: 77, PID: 1}); got != auth.WrongPeer {
		t.Errorf("from another user: %s", got)
	}
	short := secretOf(w.with(operator, func(c *identity.Claims) { c.ExpiresAt = now.Unix() + 60 }))
	w.expect("before its end", short, operator, auth.NotRefused)
	now = now.Add(2 * time.Minute)
	w.expect("after its end", short, operator, auth.Expired)

	limited := 0
	for range 100 {
		switch why := w.ask(uuid.NewString(), operator); why {
		case auth.CallerLimited:
			limited++
		case auth.UnknownSecret:
		default:
			t.Errorf("a guess is refused for %s", why)
		}
	}
	if limited != 100-20 {
		t.Errorf("%d of 100 guesses were limited, want 80", limited)
	}
	w.expect("beside guesses", mine, operator, auth.NotRefused)

	w.allocs.set(allocID, auth.Unknown)
	w.expect("without its allocation", mine, operator, auth.UnknownAllocation)
}

package auth_test

import (
	"bufio"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"taskapi/auth"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

func TestCredentials(t *testing.T) {
	w := newFixture(t)
	good := w.token(web)
	long := strings.Repeat("a", identity.MaxTokenLength)
	for _, test := range []struct {
		name, head string
		want       auth.Reason
	}{
		{"Nomad's header", "X-Nomad-Token: " + good, auth.NotRefused},
		{"in another case", "x-nomad-TOKEN: " + good, auth.NotRefused},
		{"bearer", "Authorization: Bearer " + good, auth.NotRefused},
		{"bearer in another case", "authorization: bEARER " + good, auth.NotRefused},
		{"several spaces", "Authorization: Bearer   " + good, auth.NotRefused},
		{"blanks around", "X-Nomad-Token: \t " + good + " \t", auth.NotRefused},
		{"both, equal", "X-Nomad-Token: " + good + "\nAuthorization: Bearer " + good, auth.NotRefused},
		{"one empty", "X-Nomad-Token:\nAuthorization: Bearer " + good, auth.NotRefused},
		{"the other empty", "X-Nomad-Token: " + good + "\nAuthorization: Bearer", auth.NotRefused},

		{"none", "Accept: */*", auth.NoToken},
		{"empty", "X-Nomad-Token:", auth.NoToken},
		{"bearer of nothing", "Authorization: Bearer", auth.NoToken},
		{"bearer of a space", "Authorization: Bearer ", auth.NoToken},
		{"another scheme", "Authorization: Basic dXNlcjpwYXNz", auth.NoToken},
		{"no scheme", "Authorization: " + good, auth.NoToken},
		{"a scheme that begins alike", "Authorization: BearerX " + good, auth.NoToken},
		{"a tab behind the scheme", "Authorization: Bearer\t" + good, auth.NoToken},
		{"another header", "X_Nomad_Token: " + good, auth.NoToken},
		{"in a cookie", "Cookie: X-Nomad-Token=" + good, auth.NoToken},

		{"both, different", "X-Nomad-Token: " + good + "\nAuthorization: Bearer " + good + "x", auth.AmbiguousToken},
		{"beside another scheme", "X-Nomad-Token: " + good + "\nAuthorization: Basic dXNlcjpwYXNz", auth.AmbiguousToken},
		{"twice", "X-Nomad-Token: " + good + "\nX-Nomad-Token: " + good, auth.AmbiguousToken},
		{"twice, one empty", "X-Nomad-Token:\nX-Nomad-Token: " + good, auth.AmbiguousToken},
		{"bearer twice", "Authorization: Bearer " + good + "\nAuthorization: Bearer " + good, auth.AmbiguousToken},

		{"origin", "Origin: http://localhost\nX-Nomad-Token: " + good, auth.FromBrowser},
		{"empty origin", "Origin:\nX-Nomad-Token: " + good, auth.FromBrowser},
		{"referer", "Referer: http://localhost/\nX-Nomad-Token: " + good, auth.FromBrowser},
		{"origin and no token", "Origin: null", auth.FromBrowser},

		{"the longest", "X-Nomad-Token: " + long, auth.Malformed},
		{"too long", "X-Nomad-Token: " + long + "a", auth.TooLong},
		{"two tokens", "Authorization: Bearer " + good + " " + good, auth.Malformed},
		{"folded", "Authorization: Bearer " + good[:20] + "\n " + good[20:], auth.Malformed},
		{"quoted", `Authorization: Bearer "` + good + `"`, auth.Malformed},
		{"not UTF-8", "X-Nomad-Token: \xff\xfe", auth.Malformed},
		{"a comma", "X-Nomad-Token: " + good + "," + good, auth.Malformed},
	} {
		t.Run(test.name, func(t *testing.T) {
			raw := "GET /v1/agent/health?token=" + good + "&X-Nomad-Token=" + good + " HTTP/1.1\nHost: x\n" + test.head + "\n\n"
			r := must.Get(http.ReadRequest(bufio.NewReaderSize(strings.NewReader(raw), 16<<10)))(t)
			got := auth.NotRefused
			if _, denial := w.authenticator.Authenticate(r, web, peer); denial != nil {
				got = denial.Reason
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestEveryMethodAndPath(t *testing.T) {
	w := newFixture(t)
	for _, line := range []string{"OPTIONS *", "CONNECT host:1", "PRI *", "TRACE /", "GET //v1//x", "GET /v1/../etc",
		"GET /%00", "get /", "GET http://h/x"} {
		r := must.Get(http.ReadRequest(bufio.NewReader(strings.NewReader(line + " HTTP/1.1\nHost: x\n\n"))))(t)
		if p, denial := w.authenticator.Authenticate(r, web, peer); p != nil || denial == nil ||
			denial.Reason.Status() != http.StatusUnauthorized {
			t.Errorf("%s without a token: %v, %v", line, p, denial)
		}
		r.Header.Set("X-Nomad-Token", w.token(web))
		if p, denial := w.authenticator.Authenticate(r, web, peer); denial != nil || p == nil {
			t.Errorf("%s with a token: %v, %v", line, p, denial)
		}
	}
}

func TestTokens(t *testing.T) {
	w := newFixture(t)
	stranger := identitytest.Keyring(t)
	good := w.token(web)
	w.allocs.set("ended", auth.Terminal)
	w.allocs.set("neighbour", auth.Live)
	for _, test := range []struct {
		name, token string
		owner       auth.Owner
		want        auth.Reason
	}{
		{"a task on its socket", good, web, auth.NotRefused},
		{"the operator on their socket", w.token(operator), operator, auth.NotRefused},
		{"the operator on a task's socket", w.token(operator), web, auth.WrongSocket},
		{"a task on another's socket", good, db, auth.WrongSocket},
		{"a task on the operator's socket", good, operator, auth.WrongSocket},
		{"a task's token without a task", w.with(operator, func(c *identity.Claims) { c.Role = "" }), web, auth.WrongSocket},
		{"the same on the operator's socket", w.with(operator, func(c *identity.Claims) { c.Role = "" }), operator,
			auth.WrongSocket},
		{"of another allocation here", w.token(auth.Owner{AllocationID: "neighbour", Task: "web"}), web, auth.WrongSocket},
		{"the operator of another allocation", w.token(auth.Owner{AllocationID: "neighbour"}), web, auth.WrongSocket},
		{"of an allocation that is not here", w.token(auth.Owner{AllocationID: otherID, Task: "web"}), web,
			auth.UnknownAllocation},
		{"of no allocation", w.with(web, func(c *identity.Claims) { c.AllocationID = "" }), web, auth.UnknownAllocation},
		{"of an allocation that has ended", w.token(auth.Owner{AllocationID: "ended", Task: "web"}),
			auth.Owner{AllocationID: "ended", Task: "web", UID: 1000}, auth.TerminalAllocation},
		{"the operator of an allocation that has ended", w.token(auth.Owner{AllocationID: "ended"}),
			auth.Owner{AllocationID: "ended", UID: 1000}, auth.NotRefused},
		{"for another audience", w.with(web, func(c *identity.Claims) { c.Audience = []string{"vault.io"} }), web,
			auth.WrongAudience},
		{"expired", w.with(web, func(c *identity.Claims) { c.IssuedAt, c.NotBefore, c.ExpiresAt = 0, 0, time.Now().Unix() }),
			web, auth.Expired},
		{"not yet valid", w.with(web, func(c *identity.Claims) { c.NotBefore += 60 }), web, auth.NotYetValid},
		{"for too long",
			w.with(web, func(c *identity.Claims) { c.ExpiresAt += int64(2 * identity.DefaultMaxTTL / time.Second) }), web,
			auth.BadLifetime},
		{"forged", forge(good, 1), web, auth.BadSignature},
		{"of a stranger's ring", identitytest.Sign(t, stranger, claimsOf(web)), web, auth.UnknownKey},
		{"under an unknown key ID", unknownKey(good, 1), web, auth.UnknownKey},
		{"cut", good[:len(good)-1], web, auth.Malformed},
		{"garbage", "garbage", web, auth.Malformed},
		{"alg none", "eyJhbGciOiJub25lIn0.e30.", web, auth.BadAlgorithm},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 3 { // fresh, and remembered
				w.tb = t
				w.expect(test.name, test.token, test.owner, test.want)
			}
		})
	}
}

func TestPrincipal(t *testing.T) {
	policy := must.Get(auth.ParsePolicy("p", []byte(`task "web" { deny = ["read-fs"] }`)))(t)
	w := newFixture(t, func(c *auth.Config) { c.Policy = policy })
	for _, test := range []struct {
		owner auth.Owner
		want  auth.CapabilitySet
	}{
		{web, auth.DefaultTask &^ auth.CapabilitySet(auth.ReadFS)},
		{db, auth.DefaultTask},
		{operator, auth.All},
	} {
		claims := claimsOf(test.owner)
		claims.ID = "jti"
		want := &auth.Principal{Claims: claims, TaskGroup: demo.TaskGroup, KeyID: w.ring.List()[0].ID,
			Capabilities: test.want}
		got := admitted(w.authenticator.Authenticate(request(identitytest.Sign(t, w.ring, claims)), test.owner, peer))(t)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(auth.Principal{})); diff != "" {
			t.Error(diff)
		}
		for _, c := range append(auth.All.List(), 0) {
			denial := w.authenticator.Authorize(got, auth.CapabilitySet(c))
			if allowed := denial == nil; allowed != test.want.Has(c) {
				t.Errorf("%v on %s: %v", test.owner, c, denial)
			}
			if denial != nil && denial.Reason != auth.MissingCapability {
				t.Errorf("denied for %s", denial.Reason)
			}
		}
	}
	if w.authenticator.Authorize(nil, auth.All) == nil {
		t.Error("nobody is allowed something")
	}
}

// Every reason has a name of its own and a status that blames the caller; every reason of package identity has its own
// here.
func TestReasons(t *testing.T) {
	w := newFixture(t)
	names := map[string]bool{auth.NotRefused.String(): true}
	for _, why := range auth.Reasons() {
		if names[why.String()] || why.String() == "" {
			t.Errorf("reason %d is called %q", why, why)
		}
		if why.Status() < 400 || why.Status() >= 500 {
			t.Errorf("%s is answered with %d", why, why.Status())
		}
		names[why.String()] = true
	}
	source, err := os.ReadFile("../identity/reason.go") // a list here would go on without the reasons that are added there
	must.OK(t, err)
	constants := regexp.MustCompile(`(?m)^\tReason\w+ +Reason = "(\w+)"`).FindAllSubmatch(source, -1)
	if len(constants) < 14 {
		t.Errorf("found %d reasons of package identity", len(constants))
	}
	for _, constant := range constants {
		if why := string(constant[1]); !names[why] {
			t.Errorf("identity refuses with %q, which has no name here", why)
		}
	}
	p, denial := w.authenticator.Authenticate(request(""), web, peer)
	if p != nil || denial.Reason != auth.NoToken || denial.Error() != "no_token" {
		t.Errorf("got %+v", denial)
	}
}

// A token that was let in a moment ago is refused on the very next request once anything has changed that should.
func TestRevocationIsImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		token, old := w.token(web), w.ring.List()[0].ID
		w.expect("fresh", token, web, auth.NotRefused)

		w.allocs.set(allocID, auth.Terminal)
		w.expect("terminal", token, web, auth.TerminalAllocation)
		w.allocs.set(allocID, auth.Unknown)
		w.expect("gone", token, web, auth.UnknownAllocation)
		w.allocs.set(allocID, auth.Live)
		w.expect("live again", token, web, auth.NotRefused)

		must.Get(w.ring.Rotate())(t)
		w.expect("key rotated", token, web, auth.NotRefused)
		must.OK(t, w.ring.Remove(old))
		w.expect("key removed", token, web, auth.KeyRemoved)

		token = w.token(web)
		w.expect("fresh", token, web, auth.NotRefused)
		time.Sleep(hour - time.Nanosecond)
		w.expect("in its last nanosecond", token, web, auth.NotRefused)
		time.Sleep(time.Nanosecond)
		w.expect("expired", token, web, auth.Expired)
		if got := w.verifier.checks.Load(); got != 2 {
			t.Errorf("%d signatures were checked, want one for each token", got)
		}
	})
}

// No request that began after the mark is let in, whatever is going on at the time.
func TestTerminalRace(t *testing.T) {
	for range 20 {
		w := newFixture(t)
		tokens := []string{w.token(web), w.token(web), w.token(operator)}
		w.expect("warm", tokens[0], web, auth.NotRefused)
		ended := make(chan struct{})
		results := make(chan int, 4)
		for i := range 4 {
			go func() {
				late := 0
				random := rand.New(rand.NewPCG(1, uint64(i)))
				for after := 0; after < 50; {
					marked := false
					select {
					case <-ended:
						marked = true
						after++
					default:
					}
					p, _ := w.authenticator.Authenticate(request(tokens[random.IntN(len(tokens))]), web, peer)
					if p != nil && marked {
						late++
					}
				}
				results <- late
			}()
		}
		w.allocs.set(allocID, auth.Terminal)
		close(ended)
		for range 4 {
			if late := <-results; late > 0 {
				t.Fatalf("%d requests that began after the end were let in", late)
			}
		}
	}
}

func FuzzCredentials(f *testing.F) {
	w := newFixture(f, func(c *auth.Config) { c.Auditor = nil })
	good := w.token(web)
	f.Add("X-Nomad-Token", good, "Authorization", "Bearer "+good)
	f.Add("Authorization", "bearer  x", "Origin", "")
	f.Add("Authorization", "Bearer", "Authorization", "\xff")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		r := request("")
		r.Header.Add(k1, v1)
		r.Header.Add(k2, v2)
		p, denial := w.authenticator.Authenticate(r, web, peer)
		switch {
		case p != nil && !strings.Contains(v1, good) && !strings.Contains(v2, good):
			t.Fatalf("let in without the token: %q", r.Header)
		case p == nil && (denial.Reason.Status() < 400 || denial.Reason.Status() >= 500):
			t.Fatalf("refused with %d", denial.Reason.Status())
		}
	})
}

// TestNow: tokens and limits are held against the configured clock alone.
func TestNow(t *testing.T) {
	var clock atomic.Int64 // which stands: limits fill up while a busy machine makes tokens
	at := func(now time.Time) { clock.Store(now.UnixNano()) }
	w := newFixture(t, func(c *auth.Config) {
		c.Limits = auth.Limits{}
		c.Now = func() time.Time { return time.Unix(0, clock.Load()) }
	})
	token := w.token(web)
	now := time.Now()
	at(now)
	w.expect("a token of an hour", token, web, auth.NotRefused)
	for n := range 20 {
		w.expect("a forged token", forge(token, n), web, auth.BadSignature)
	}
	w.expect("one too many", forge(token, 20), web, auth.CallerLimited)
	at(now.Add(10 * time.Second))
	w.expect("ten seconds later", forge(token, 21), web, auth.BadSignature)
	at(now.Add(2 * hour))
	w.expect("the same token two hours later", token, web, auth.Expired)
	at(now.Add(-hour))
	w.expect("an hour before", token, web, auth.NotYetValid)
}

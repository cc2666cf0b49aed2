package auth_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"taskapi/auth"
	"taskapi/identity"
)

const locks = "/v1/var/*"

var lacksWrite = auth.CapabilitySet(auth.VariablesWrite)

// kept returns what is remembered of a task.
func kept(r *auth.Refusals, task string) []auth.Refusal { return r.All()[task] }

// ignoreRoute leaves out the field that only tells one kind from another.
var ignoreRoute = cmpopts.IgnoreUnexported(auth.Refusal{})

func TestRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r auth.Refusals
		r.Lacked(web, "PUT", locks, "/v1/var/a", lacksWrite)
		r.Lacked(web, "GET", "/v1/nodes", "/v1/nodes", auth.CapabilitySet(auth.NodeRead).With(auth.AgentRead))
		time.Sleep(time.Hour)
		r.Lacked(web, "PUT", locks, "/v1/var/b", lacksWrite)
		r.Lacked(web, "DELETE", locks, "/v1/var/b", lacksWrite)
		r.Lacked(db, "PUT", locks, "/v1/var/of-db", lacksWrite)
		r.Lacked(operator, "PUT", locks, "/v1/var/c", lacksWrite)
		now, missing := time.Now(), "missing_capability"
		refusal := func(at time.Time, count uint64, method, path, capability string) auth.Refusal {
			return auth.Refusal{Time: at, Count: count, Reason: missing, Method: method, Path: path, Capability: capability}
		}
		want := map[string][]auth.Refusal{
			"web": {
				refusal(now.Add(-time.Hour), 1, "GET", "/v1/nodes", "agent:read or node:read"),
				refusal(now, 2, "PUT", "/v1/var/b", "variables-write"),
				refusal(now, 1, "DELETE", "/v1/var/b", "variables-write"),
			},
			"db": {refusal(now, 1, "PUT", "/v1/var/of-db", "variables-write")},
		}
		if diff := cmp.Diff(want, r.All(), ignoreRoute); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}

// A task that asks for ever more is remembered by its latest kinds, and no line is long or steers a terminal.
func TestRefusalsAreBounded(t *testing.T) {
	w := newFixture(t)
	r := w.refusals
	for i := range 1000 {
		r.Lacked(web, "GET", fmt.Sprint("/v1/", i), fmt.Sprint("/v1/", i, "/\x1b[31m\u202e", strings.Repeat("a", 1000)),
			lacksWrite)
	}
	for range 2 {
		w.expect("forged", forge(w.token(web), 1), web, auth.BadSignature)
		w.expect("none", "", web, auth.NoToken)
	}
	all := kept(r, "web")
	if len(all) != 18 || all[0].Path[:len("/v1/984/")] != "/v1/984/" || all[15].Path[:len("/v1/999/")] != "/v1/999/" {
		t.Errorf("%d kinds are remembered: %v", len(all), all)
	}
	for _, one := range all[:16] {
		if len(one.Path) > 512 || strings.ContainsAny(one.String(), "\x1b\u202e") {
			t.Errorf("%q", one.String())
		}
	}
	// Those whose caller is unknown say why, and nothing of the request.
	for i, reason := range []string{"signature", "no_token"} {
		want := auth.Refusal{Count: 2, Reason: reason}
		if diff := cmp.Diff(want, all[16+i], ignoreRoute, cmpopts.IgnoreFields(auth.Refusal{}, "Time")); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	r.Lacked(web, "GET", "/v1/last", "/v1/last", lacksWrite)
	all = kept(r, "web")
	if len(all) != 18 || !strings.HasPrefix(all[0].Path, "/v1/985/") || all[15].Reason != "signature" {
		t.Errorf("another kind replaces another than the oldest that lacked a capability: %v", all)
	}
}

func TestRefusalsAtOnce(t *testing.T) {
	var r auth.Refusals
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 100 {
				r.Lacked(web, "GET", fmt.Sprint(i%4), "/", lacksWrite)
				_ = kept(&r, "web")
			}
		})
	}
	all.Wait()
	total := uint64(0)
	for _, one := range kept(&r, "web") {
		total += one.Count
	}
	if total != 800 {
		t.Errorf("%d are counted, want 800", total)
	}
}

func TestRefusalsInWords(t *testing.T) {
	var r auth.Refusals
	r.Lacked(web, "PUT", locks, "/v1/var/a", lacksWrite)
	r.Lacked(web, "PUT", locks, "/v1/var/a", lacksWrite)
	r.Lacked(web, "GET", "/v1/metrics", "/v1/metrics", auth.CapabilitySet(auth.OperatorOnly))
	got := []string{auth.Refusal{Reason: "expired", Count: 3}.String()}
	for _, one := range kept(&r, "web") {
		got = append(got, one.String())
	}
	want := []string{
		"reason: expired (3 times)",
		"PUT /v1/var/a needs variables-write, which the policy does not give (2 times)",
		"GET /v1/metrics is for the operator alone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// Only the operator learns that a good token came to a socket of somebody else's.
func TestOperatorsTokenAstray(t *testing.T) {
	other := auth.Owner{AllocationID: otherID, UID: operator.UID}
	w := newFixture(t)
	astray := map[string]struct {
		token string
		on    auth.Owner
		want  bool
	}{
		"the operator's to a task":            {w.token(operator), web, true},
		"of an allocation that is not here":   {w.token(other), operator, true},
		"the same, to a task":                 {w.token(other), web, true},
		"a task's to another":                 {w.token(db), web, false},
		"a task's to the operator":            {w.token(web), operator, false},
		"a task's of another allocation":      {w.token(auth.Owner{AllocationID: otherID, Task: "web"}), web, false},
		"the operator's, forged":              {forge(w.token(operator), 1), web, false},
		"the operator's, by an unknown key":   {unknownKey(w.token(operator), 1), web, false},
		"the operator's, expired":             {w.with(operator, expired), web, false},
		"the operator's of another namespace": {w.with(operator, func(c *identity.Claims) { c.Namespace = "x" }), web, false},
	}
	for _, what := range slices.Sorted(maps.Keys(astray)) {
		test := astray[what]
		for _, use := range []string{"first", "second"} {
			_, denial := w.authenticator.Authenticate(request(test.token), test.on, peer)
			if denial == nil || denial.Astray != test.want {
				t.Errorf("%s, its %s use: %+v, want Astray=%t", what, use, denial, test.want)
			}
		}
	}
}

func expired(c *identity.Claims) { c.IssuedAt, c.NotBefore, c.ExpiresAt = 1, 1, 2 }

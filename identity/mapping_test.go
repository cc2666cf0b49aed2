package identity_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

func mappingOf(tb testing.TB, claims ...string) *identity.Mapping {
	tb.Helper()
	m := new(identity.Mapping)
	for i := 0; i < len(claims); i += 2 {
		must.OK(tb, m.Add(claims[i], claims[i+1]))
	}
	return m
}

// These claims have the form that Kubernetes documents for projected service account tokens (Managing Service Accounts,
// "Bound service account tokens"), and SPIFFE for JWT-SVIDs (section 3).
const (
	kubernetesClaims = `{"aud":["taskapi"],"exp":1795262400,"iat":1763726400,"nbf":1763726400,
		"iss":"https://kubernetes.default.svc.cluster.local","jti":"aed34954-b33a-4142-b1ec-389d6bbb4936",
		"kubernetes.io":{"namespace":"prod","node":{"name":"n1","uid":"646e7c5e-32d6-4d42-9dbd-e504e6cbe6b1"},
		"pod":{"name":"web-7d9f","uid":"5e0bd49b-f040-43b0-99b7-22765a53f7f3"},
		"serviceaccount":{"name":"web","uid":"14ee3fa4-a7e2-420f-9f9a-dbc4507c3798"}},
		"sub":"system:serviceaccount:prod:web"}`
	spiffeClaims = `{"aud":["taskapi"],"exp":1795262400,"sub":"spiffe://example.org/ns/prod/job/shop/task/web"}`
)

func TestMapping(t *testing.T) {
	const kubernetes = "https://kubernetes.default.svc.cluster.local"
	local := identitytest.Keyring(t)
	theirs := newIssuer("theirs", 't')
	for name, test := range map[string]struct {
		claims, iss string
		mapping     []string
		want        identity.Claims // without the standard claims
		reason      identity.Reason
	}{
		"Kubernetes": {claims: kubernetesClaims, iss: kubernetes, mapping: []string{"sub",
			"system:serviceaccount:prod:{task}"}, want: identity.Claims{Task: "web"}},
		"members": {claims: kubernetesClaims, iss: kubernetes, mapping: []string{"/kubernetes.io/serviceaccount/name",
			"{task}", "/kubernetes.io/namespace", "{namespace}"}, want: identity.Claims{Task: "web", Namespace: "prod"}},
		"another namespace": {claims: kubernetesClaims, iss: kubernetes, mapping: []string{"sub",
			"system:serviceaccount:test:{task}"}, reason: identity.ReasonClaims},
		"a claim that is no string": {claims: kubernetesClaims, iss: kubernetes, mapping: []string{"sub",
			"system:serviceaccount:prod:{task}", "kubernetes.io", "*"}, reason: identity.ReasonClaims},
		"a claim that is missing": {claims: kubernetesClaims, iss: kubernetes, mapping: []string{"sub",
			"system:serviceaccount:prod:{task}", "/kubernetes.io/pod/ip", "*"}, reason: identity.ReasonClaims},
		"another issuer": {claims: kubernetesClaims, iss: "https://other.example", mapping: []string{"sub",
			"system:serviceaccount:prod:{task}"}, reason: identity.ReasonIssuer},
		"SPIFFE": {claims: spiffeClaims, mapping: []string{"sub",
			"spiffe://example.org/ns/{namespace}/job/{job}/task/{task}"},
			want: identity.Claims{Task: "web", Namespace: "prod", JobID: "shop"}},
		"another trust domain": {claims: spiffeClaims, mapping: []string{"sub",
			"spiffe://example.com/ns/{namespace}/job/{job}/task/{task}"},
			reason: identity.ReasonClaims},
		"an iss where there is none": {claims: kubernetesClaims, mapping: []string{"sub",
			"system:serviceaccount:prod:{task}"}, reason: identity.ReasonIssuer},
		"a part more": {claims: `{"aud":"taskapi","exp":1795262400,"iss":"i","sub":"spiffe://example.org/task/web/x"}`,
			iss: "i", mapping: []string{"sub", "spiffe://example.org/task/{task}"}, reason: identity.ReasonClaims},
		"a line feed after": {claims: `{"aud":"taskapi","exp":1795262400,"iss":"i","sub":"task/web\n"}`,
			iss: "i", mapping: []string{"sub", "task/w{task}b"}, reason: identity.ReasonClaims},
		"our claims": { // have no meaning in such a token
			claims: `{"aud":"taskapi","exp":1795262400,"iss":"i","sub":"task/web","nomad_task":"db",` +
				`"nomad_allocation_id":"5d2b1f0e-0000-4000-8000-000000000002","nomad_namespace":"x",` +
				`"taskapi_allocation_life":"l"}`,
			iss: "i", mapping: []string{"sub", "task/{task}"}, want: identity.Claims{Task: "web"}},
		"no expiry": {claims: `{"aud":"taskapi","iat":1763726400,"iss":"i","sub":"task/web"}`,
			iss: "i", mapping: []string{"sub", "task/{task}"}, reason: identity.ReasonClaims},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVerifier(t, identity.VerifierConfig{Local: local, Foreign: []identity.Issuer{
				{Keys: theirs.KeySet(t), Name: test.iss, Audiences: []string{"taskapi"}, Mapping: mappingOf(t, test.mapping...)},
			}})
			now := time.Unix(1763726400+60, 0)
			got, err := v.Verify(theirs.Token(theirs.Header(""), strings.NewReplacer("\n\t\t", "").Replace(test.claims)), now)
			if reason, _ := identity.ReasonOf(err); reason != test.reason {
				t.Fatalf("%v, want reason %q", err, test.reason)
			}
			if err != nil {
				return
			}
			c := got.Claims
			c.ID, c.Issuer, c.Audience, c.IssuedAt, c.NotBefore, c.ExpiresAt = "", "", nil, 0, 0, 0
			if diff := cmp.Diff(test.want, c); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
			within := got.Within("an allocation", "default", "job").Claims
			if within.AllocationID != "an allocation" || within.Task != test.want.Task ||
				test.want.JobID == "" != (within.JobID == "job") || test.want.Namespace == "" != (within.Namespace == "default") {
				t.Errorf("within an allocation: %+v", within)
			}
		})
	}
}

// FuzzMapping: what a pattern accepts can be put together again from its parts, which hold no separator.
func FuzzMapping(f *testing.F) {
	f.Add("system:serviceaccount:prod:{task}", "system:serviceaccount:prod:web")
	f.Add("spiffe://example.org/ns/{namespace}/job/{job}/task/{task}", "spiffe://example.org/ns/a/job/b/task/c")
	f.Add("{task}/{task}", "a/a")
	f.Add("a.{task}", "axb")
	theirs := newIssuer("theirs", 't')
	f.Fuzz(func(t *testing.T, pattern, sub string) {
		m := new(identity.Mapping)
		if m.Add("sub", pattern) != nil || m.Check() != nil || strings.Contains(pattern, "*") ||
			!utf8.ValidString(sub) {
			return
		}
		v := newVerifier(t, identity.VerifierConfig{Local: new(identity.KeySet),
			Foreign: []identity.Issuer{{Keys: theirs.KeySet(t), Mapping: m}}})
		got, err := v.Verify(theirs.Token(theirs.Header(""),
			withExp(fmt.Sprint(epoch.Unix()+3600)+`,"sub":`+quoted(sub))), epoch)
		if err != nil {
			if reason, ok := identity.ReasonOf(err); !ok || reason == identity.ReasonSignature {
				t.Fatal(err)
			}
			return
		}
		c := got.Claims
		for _, part := range []string{c.Task, c.Namespace, c.JobID, c.AllocationID} {
			if strings.ContainsAny(part, "/:") {
				t.Errorf("part %q", part)
			}
		}
		again := strings.NewReplacer("{task}", c.Task, "{namespace}", c.Namespace, "{job}", c.JobID,
			"{allocation}", c.AllocationID).Replace(pattern)
		if c.Task == "" || again != sub {
			t.Errorf("pattern %q of %q gave %+v, which is %q", pattern, sub, c, again)
		}
	})
}

func quoted(s string) string {
	text, _ := json.Marshal(s) // takes every string
	return string(text)
}

func TestMappingNeedsATask(t *testing.T) {
	keys := newIssuer("theirs", 't').KeySet(t)
	for name, is := range map[string]identity.Issuer{
		"no task":   {Keys: keys, Mapping: mappingOf(t, "sub", "{job}")},
		"no expiry": {Keys: keys, NoExpiry: true, Mapping: mappingOf(t, "sub", "{task}")},
	} {
		_, err := identity.NewVerifier(identity.VerifierConfig{Local: keys, Foreign: []identity.Issuer{is}})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := new(identity.Mapping).Add("a/b", "x{task"); err != nil {
		t.Errorf("braces that name nothing: %v", err)
	}
	var full identity.Mapping
	for claim := range strings.SplitSeq("a b c d e f g h", " ") {
		must.OK(t, full.Add(claim, "*"))
	}
	if err := full.Add("i", "*"); err == nil || errors.Unwrap(err) != nil {
		t.Errorf("a ninth claim: %v", err)
	}
}

// TestNoExpiry: a token without exp is good only of an issuer that may leave it out, for a year, and for a minute at a
// time.
func TestNoExpiry(t *testing.T) {
	local, theirs := identitytest.Keyring(t), newIssuer("theirs", 't')
	claims := `{"aud":"nomadproject.io","iat":1795262400,"nbf":1795262400,"jti":"j","nomad_task":"web"}`
	at := func(d time.Duration) time.Time { return time.Unix(1795262400, 0).Add(d) }
	for name, test := range map[string]struct {
		optional bool
		claims   string
		now      time.Time
		reason   identity.Reason
	}{
		"optional":            {true, claims, at(0), ""},
		"after a year":        {true, claims, at(identity.DefaultMaxTTL - time.Second), ""},
		"after a year and up": {true, claims, at(identity.DefaultMaxTTL), identity.ReasonExpired},
		"before":              {true, claims, at(-time.Minute), identity.ReasonNotYetValid},
		"required":            {false, claims, at(0), identity.ReasonClaims},
		"no iat":              {true, `{"aud":"nomadproject.io","jti":"j"}`, at(0), identity.ReasonClaims},
		"exp 0":               {true, `{"aud":"nomadproject.io","iat":1795262400,"exp":0}`, at(0), identity.ReasonClaims},
		"exp null":            {true, `{"aud":"nomadproject.io","iat":1795262400,"exp":null}`, at(0), identity.ReasonClaims},
	} {
		v := newVerifier(t, identity.VerifierConfig{Local: local,
			Foreign: []identity.Issuer{{Keys: theirs.KeySet(t), NoExpiry: test.optional}}})
		got, err := v.Verify(theirs.Token(theirs.Header(""), test.claims), test.now)
		if reason, _ := identity.ReasonOf(err); reason != test.reason {
			t.Errorf("%s: %v, want reason %q", name, err, test.reason)
		}
		if err == nil && (got.Stale(test.now.Add(59*time.Second)) || !got.Stale(test.now.Add(time.Minute)) ||
			got.Claims.ExpiresAt != at(identity.DefaultMaxTTL).Unix()) {
			t.Errorf("%s: held for another time than a minute, or ends at %d", name, got.Claims.ExpiresAt)
		}
	}
	own := newIssuer("own", 'o')
	v := newVerifier(t, identity.VerifierConfig{Local: own.KeySet(t),
		Foreign: []identity.Issuer{{Keys: theirs.KeySet(t), NoExpiry: true}}})
	if _, err := v.Verify(own.Token(own.Header(""), claims), at(0)); err == nil {
		t.Error("a token of our own without exp is good")
	}
}

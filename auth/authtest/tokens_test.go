package authtest_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"taskapi/auth/authtest"
	"taskapi/auth/badtokens"
	"taskapi/identity"
	"taskapi/internal/must"
)

// TestBad: over a socket every kind of the catalogue gets the answer that the catalogue names, for the reason that it
// names.
func TestBad(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Limits("off"))
	client, sent := srv.HTTP(), 0
	for _, kind := range badtokens.All() {
		token := srv.Bad(kind.Name)
		if !badtokens.InHeader(token) || len(token) > 8<<10 {
			continue
		}
		sent++
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://task/v1/agent/health", http.NoBody))(t)
		r.Header.Set("X-Nomad-Token", token)
		response := must.Get(client.Do(r))(t)
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		last := srv.Requests()[len(srv.Requests())-1]
		if response.StatusCode != kind.Status() || last.Reason != kind.Reason.String() {
			t.Errorf("%s: %d %s, want %d %s", kind.Name, response.StatusCode, last.Reason, kind.Status(), kind.Reason)
		}
	}
	if sent < 100 {
		t.Errorf("%d kinds were sent", sent)
	}
	if got := list(srv.Client(srv.Token())); got != 200 {
		t.Errorf("a good token after them: %d", got)
	}
}

// TestTokens: options say what a token claims.
func TestTokens(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Audience("bank", "shop"))
	token := srv.Token(authtest.WithAudience("shop"), authtest.WithTTL(time.Minute), authtest.WithIdentity("db"),
		authtest.WithClaim("team", []int{1}))
	read := must.Get(identity.Check(token))(t)
	c := read.Claims
	if !slices.Equal(c.Audience, []string{"shop"}) || c.ExpiresAt-c.IssuedAt != 60 ||
		c.Subject != "global:default:test:group:web:db" {
		t.Errorf("claims %+v", c)
	}
	if !strings.Contains(payload(t, token), `"team":[1]`) {
		t.Errorf("claims %s", payload(t, token))
	}
	for token, want := range map[string]string{
		token:                                 "",
		srv.Token():                           "",
		srv.Token(authtest.WithTTL(-1)):       "expired",
		srv.Token(authtest.WithAudience("x")): "audience",
		srv.Token(authtest.WithClaim("sub", "x")): "wrong_claims",
	} {
		list(srv.Client(token))
		last := srv.Requests()[len(srv.Requests())-1]
		if last.Reason != want {
			t.Errorf("%s: %q, want %q", payload(t, token), last.Reason, want)
		}
	}
}

// TestClock: an hour later a token has expired, and the token file has another one.
func TestClock(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	first := read(t, srv.TokenFile())
	client := srv.Client(first)
	if got := list(client); got != 200 {
		t.Fatalf("the token file's: %d", got)
	}
	srv.Advance(40 * time.Minute)
	second := read(t, srv.TokenFile())
	if second == first || list(client) != 200 {
		t.Errorf("after 40 minutes of 60: renewed %v, and the one before must still be good", second != first)
	}
	srv.Advance(21 * time.Minute)
	if got := list(client); got != 403 {
		t.Errorf("after 61 minutes: %d", got)
	}
	if got := list(srv.Client(second)); got != 200 {
		t.Errorf("the renewed one after 61 minutes: %d", got)
	}
	srv.Advance(-2 * time.Hour)
	srv.Expect("GET /v1/allocations 200", "GET /v1/allocations 200", "GET /v1/allocations 403 expired",
		"GET /v1/allocations 200")
	list(srv.Client(second))
	srv.Expect("GET /v1/allocations 403 not_yet_valid")
}

// TestKeys: a rotated key still verifies, a removed one does not, and the token file follows.
func TestKeys(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	first := read(t, srv.TokenFile())
	client := srv.Client(first)
	before := srv.RotateKey()
	if got := list(client); got != 200 || read(t, srv.TokenFile()) != first {
		t.Errorf("after a rotation: %d", got)
	}
	srv.RemoveKey(before)
	second := read(t, srv.TokenFile())
	if got := list(client); got != 403 || second == first {
		t.Errorf("after the removal: %d, renewed %v", got, second != first)
	}
	if got := list(srv.Client(second)); got != 200 {
		t.Errorf("the renewed one: %d", got)
	}
	srv.ReplaceKey()
	list(srv.Client(second))
	srv.Expect("GET /v1/allocations 200", "GET /v1/allocations 403 key_removed", "GET /v1/allocations 200",
		"GET /v1/allocations 403 key_removed")
}

// TestRevoke: a revoked token is refused, and the token file has another one; so too under a clock that was moved.
func TestRevoke(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, 30 * time.Hour} {
		srv := authtest.NewServer(t, authtest.Job{Tasks: []string{"web", "db"}})
		srv.Advance(ahead)
		first, other, db := read(t, srv.TokenFile()), srv.Token(), srv.Task("db")
		srv.Revoke(first)
		second := read(t, srv.TokenFile())
		if second == first {
			t.Error("the token file has the revoked token")
		}
		list(srv.Client(first))
		list(srv.Client(other))
		list(srv.Client(second))
		srv.Expect("GET /v1/allocations 403 revoked", "GET /v1/allocations 200", "GET /v1/allocations 200")
		dbToken := db.Token()
		srv.RevokeAll()
		list(srv.Client(other))
		list(srv.Client(second))
		list(srv.Client(read(t, srv.TokenFile())))
		list(srv.Client(srv.Token()))
		list(db.Client(dbToken))
		srv.Expect(
			"GET /v1/allocations 403 revoked",
			"GET /v1/allocations 403 revoked",
			"GET /v1/allocations 200",
			"GET /v1/allocations 200",
			"GET /v1/allocations 200",
		)
	}
}

// TestJWKS: the key set and the discovery are those of now, and OIDC has tokens name their issuer.
func TestJWKS(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.OIDC())
	var discovery struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	must.OK(t, json.Unmarshal([]byte(get(t, srv.JWKSServer()+"/.well-known/openid-configuration")),
		&discovery))
	if discovery.Issuer != srv.JWKSServer() || discovery.JWKSURI != srv.JWKSURL() {
		t.Errorf("discovery %+v", discovery)
	}
	for range 2 {
		set := must.Get(identity.ParseJWKS([]byte(get(t, srv.JWKSURL()))))(t)
		verifier := must.Get(identity.NewVerifier(identity.VerifierConfig{Local: set}))(t)
		verified, err := verifier.Verify(srv.Token(), time.Now())
		if err != nil || verified.Claims.Issuer != discovery.Issuer {
			t.Errorf("got %+v, %v", verified, err)
		}
		if id, _ := srv.PublicKey(); !set.Has(id) || set.Len() != 1 {
			t.Errorf("the set has %q, and %s signs", set.IDs(), id)
		}
		srv.ReplaceKey()
	}
	if got := get(t, srv.JWKSServer()+"/v1/allocations"); !strings.Contains(got, "not found") {
		t.Errorf("another path: %q", got)
	}
	plain := authtest.NewServer(t)
	if strings.Contains(payload(t, plain.Token()), `"iss"`) || !strings.Contains(get(t, plain.JWKSURL()), `"OKP"`) {
		t.Error("without OIDC tokens name no issuer, and the key set is there")
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url) //nolint:noctx // a test's
	must.OK(t, err)
	defer response.Body.Close()
	content := must.Get(io.ReadAll(response.Body))(t)
	http.DefaultClient.CloseIdleConnections()
	return string(content)
}

// payload returns a token's claims.
func payload(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	claims := must.Get(base64.RawURLEncoding.DecodeString(parts[1]))(t)
	return string(claims)
}

package identity_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"taskapi/identity"
	"taskapi/internal/must"
)

// FuzzCheck feeds it whole tokens. What it accepts has one encoding, and golang-jwt reads the same out of it.
func FuzzCheck(f *testing.F) {
	forger := newIssuer("forger-1", 'f')
	f.Add(forger.Token(forger.Header(""), asNomad))
	for _, bad := range badTokens(f, forger) {
		if len(bad.token) <= identity.MaxTokenLength {
			f.Add(bad.token)
		}
	}
	f.Fuzz(func(t *testing.T, token string) {
		u, err := identity.Check(token)
		if err != nil {
			if reason, ok := identity.ReasonOf(err); !ok || !structural(reason) {
				t.Fatalf("error %v, want a structural reason", err)
			}
			return
		}
		for segment := range strings.SplitSeq(token, ".") {
			decoded, err := base64.RawURLEncoding.DecodeString(segment)
			if err != nil || base64.RawURLEncoding.EncodeToString(decoded) != segment {
				t.Errorf("accepted a segment that is not canonical")
			}
		}
		claims := jwt.MapClaims{}
		parsed, _, err := strictParser(epoch).ParseUnverified(token, claims)
		if err != nil {
			t.Fatalf("accepted what golang-jwt refuses: %v", err)
		}
		if parsed.Header["kid"] != u.KeyID {
			t.Errorf("key ID %q, golang-jwt reads %q", u.KeyID, parsed.Header["kid"])
		}
		compareClaims(t, u.Claims, claims)
	})
}

// FuzzVerify feeds it headers and claims under a good signature, and times. What it accepts, golang-jwt accepts with
// every strict option.
func FuzzVerify(f *testing.F) {
	forger := newIssuer("forger-1", 'f')
	v := must.Get(identity.NewVerifier(identity.VerifierConfig{Local: forger.KeySet(f)}))(f)
	f.Add(forger.Header(""), asNomad, int64(0), false)
	f.Add(forger.Header(""), goodClaims(epoch, ""), int64(3599), false)
	f.Add(forger.Header(""), goodClaims(epoch, ""), int64(3600), true)
	for _, bad := range badTokens(f, forger) {
		header, rest, _ := strings.Cut(bad.token, ".")
		claims, _, _ := strings.Cut(rest, ".")
		h, errH := base64.RawURLEncoding.DecodeString(header)
		c, errC := base64.RawURLEncoding.DecodeString(claims)
		if errH == nil && errC == nil && len(bad.token) <= identity.MaxTokenLength {
			f.Add(string(h), string(c), int64(0), false)
		}
	}
	f.Fuzz(func(t *testing.T, header, claims string, after int64, flip bool) {
		now := epoch.Add(time.Duration(after%1e6) * time.Second)
		token := forger.Token(header, claims)
		if flip {
			at := len(token) - 80 // within the signature
			if _, err := v.Verify(token[:at]+string(token[at]^1)+token[at+1:], now); err == nil {
				t.Fatal("accepted a signature that was changed")
			}
		}
		verified, err := v.Verify(token, now)
		if err != nil {
			return
		}
		read := jwt.MapClaims{}
		_, err = strictParser(now).ParseWithClaims(token, read, func(*jwt.Token) (any, error) { return forger.Public(), nil })
		if err != nil {
			t.Fatalf("accepted what golang-jwt refuses: %v", err)
		}
		compareClaims(t, verified.Claims, read)
	})
}

// strictParser is golang-jwt with every option that makes it stricter.
func strictParser(now time.Time) *jwt.Parser {
	return jwt.NewParser(jwt.WithStrictDecoding(), jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(identity.Leeway), jwt.WithTimeFunc(func() time.Time {
			return now
		}), jwt.WithAudience(identity.DefaultAudience))
}

// compareClaims checks that golang-jwt read the same claims.
func compareClaims(t *testing.T, got identity.Claims, read jwt.MapClaims) {
	t.Helper()
	var want identity.Claims
	for name, field := range map[string]*string{
		"jti": &want.ID, "iss": &want.Issuer, "sub": &want.Subject, "nomad_namespace": &want.Namespace,
		"nomad_job_id":        &want.JobID,
		"nomad_allocation_id": &want.AllocationID, "nomad_task": &want.Task, "taskapi_allocation_life": &want.Life,
		"vault_role": &want.VaultRole, "vault_namespace": &want.VaultNamespace, "consul_namespace": &want.ConsulNamespace,
	} {
		*field, _ = read[name].(string)
	}
	if extra, _ := read["extra_claims"].(map[string]any); len(extra) > 0 {
		want.ExtraClaims = map[string]string{}
		for name, value := range extra {
			want.ExtraClaims[name], _ = value.(string)
		}
	}
	role, _ := read["taskapi_role"].(string)
	want.Role = identity.Role(role)
	audience := must.Get(read.GetAudience())(t)
	want.Audience = slices.Clone(audience)
	for get, field := range map[string]*int64{"iat": &want.IssuedAt, "nbf": &want.NotBefore, "exp": &want.ExpiresAt} {
		seconds, _ := read[get].(float64)
		*field = int64(seconds)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-golang-jwt's +ours):\n%s", diff)
	}
}

package identity_test

import (
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/auth/badtokens"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

const skippedKey = `{"kty":"RSA","kid":"rsa-1","use":"sig","alg":"PS256","n":"AQAB","e":"AQAB","x5c":["AAAA"]}`

func TestParseJWKS(t *testing.T) {
	a, b := newIssuer("a", 'a'), newIssuer("b", 'b')
	document := ` {"keys": [` + a.JWK(`,"use":"sig","alg":"EdDSA","key_ops":["verify"],"x5t":"?"`) + "," + skippedKey +
		`,{"kty":"OKP","crv":"X25519","x":"AAAA"},{"kty":"EC","crv":"P-256","kid":"ec","use":"enc"},` + b.JWK("") +
		`], "more": {"a": [1]}}` + "\n"
	set := must.Get(identity.ParseJWKS([]byte(document)))(t)
	if diff := cmp.Diff([]string{"a", "b"}, set.IDs()); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	skipped := []identity.SkippedKey{
		{ID: "rsa-1", Type: "RSA PS256"}, {Type: "OKP X25519"}, {ID: "ec", Type: "EC P-256 enc"},
	}
	if diff := cmp.Diff(skipped, set.Skipped()); diff != "" {
		t.Errorf("passed over (-want +got):\n%s", diff)
	}
	v := newVerifier(t, identity.VerifierConfig{Local: set})
	for _, f := range []tokenIssuer{a, b} {
		if _, err := v.Verify(f.Token(f.Header(""), goodClaims(epoch, "")), epoch); err != nil {
			t.Errorf("token of key %s: %v", f.ID, err)
		}
	}
	if empty, err := identity.ParseJWKS([]byte(`{"keys":[]}`)); err != nil || empty.Len() != 0 {
		t.Errorf("empty set: %v keys, %v", empty.Len(), err)
	}
}

// withX returns a JWK with another public key, in hexadecimal.
func withX(x string) string {
	raw, err := hex.DecodeString(x)
	if err != nil {
		panic(err)
	}
	return `{"kty":"OKP","crv":"Ed25519","kid":"bad","x":"` + base64URL(string(raw)) + `"}`
}

func TestBadKeySets(t *testing.T) {
	good := newIssuer("good", 'g')
	bad := newIssuer("bad", 'b')
	x := base64URL(string(bad.Public()))
	for _, c := range []struct{ name, keys, text string }{
		{"private key", bad.JWK(`,"d":"AAAA"`), "private"},
		{"RSA private key", `{"kty":"RSA","kid":"bad","n":"AQAB","e":"AQAB","p":"AQ"}`, "private"},
		{"symmetric key", `{"kty":"oct","kid":"bad","k":"AQ"}`, "private"},
		{"same kid twice", bad.JWK("") + "," + newIssuer("bad", 'c').JWK(""), "same kid"},
		{"same key twice", bad.JWK("") + "," + bad.JWK(""), "same kid"},
		{"kid of a key of another kind", `{"kty":"RSA","kid":"bad","use":"enc"},` + bad.JWK(""), "same kid"},
		{"use for encryption", bad.JWK(`,"use":"enc"`), "use"},
		{"empty use", bad.JWK(`,"use":""`), "use"},
		{"operation sign", bad.JWK(`,"key_ops":["sign"]`), "key_ops"},
		{"operations sign and verify", bad.JWK(`,"key_ops":["sign","verify"]`), "key_ops"},
		{"no operations", bad.JWK(`,"key_ops":[]`), "key_ops"},
		{"alg of RSA", bad.JWK(`,"alg":"RS256"`), "alg"},
		{"alg HS256", bad.JWK(`,"alg":"HS256"`), "alg"},
		{"alg none", bad.JWK(`,"alg":"none"`), "alg"},
		{"empty alg", bad.JWK(`,"alg":""`), "alg"},
		{"RSA key for EdDSA", `{"kty":"RSA","kid":"bad","alg":"EdDSA","n":"AQAB","e":"AQAB"}`, "alg"},
		{"X25519 key for EdDSA", `{"kty":"OKP","crv":"X25519","kid":"bad","alg":"EdDSA","x":"AQAB"}`, "alg"},
		{"no kty", `{"kid":"bad"}`, "kty"},
		{"no kid", `{"kty":"OKP","crv":"Ed25519","x":"` + x + `"}`, "kid"},
		{"kid a path", `{"kty":"OKP","crv":"Ed25519","kid":"../bad","x":"` + x + `"}`, "kid"},
		{"no x", `{"kty":"OKP","crv":"Ed25519","kid":"bad"}`, "x is not 32 bytes"},
		{"x of 31 bytes", withX(strings.Repeat("11", 31)), "x is not 32 bytes"},
		{"x of 33 bytes", withX(strings.Repeat("11", 33)), "x is not 32 bytes"},
		{"x padded", strings.Replace(bad.JWK(""), x, x+"=", 1), "x is not 32 bytes"},
		{"x with trailing bits", strings.Replace(bad.JWK(""), x, badtokens.TrailingBits(x), 1), "canonical base64url"},
		{"order 1", withX("01" + strings.Repeat("00", 31)), "small order"},
		{"order 2", withX("ec" + strings.Repeat("ff", 30) + "7f"), "small order"},
		{"order 4", withX(strings.Repeat("00", 32)), "small order"},
		{"order 4, negative", withX(strings.Repeat("00", 31) + "80"), "small order"},
		{"order 8, first", withX("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "small order"},
		{"order 8, second", withX("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa"), "small order"},
		{"order 8, third", withX("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "small order"},
		{"order 8, fourth", withX("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85"), "small order"},
		{"order 1 as p+1", withX("ee" + strings.Repeat("ff", 30) + "7f"), "canonical encoding"},
		{"order 4 as p", withX("ed" + strings.Repeat("ff", 30) + "7f"), "canonical encoding"},
		{"order 1 with a sign", withX("01" + strings.Repeat("00", 30) + "80"), "canonical encoding"},
		{"order 2 with a sign", withX("ec" + strings.Repeat("ff", 31)), "canonical encoding"},
		{"not on the curve", withX("02" + strings.Repeat("00", 31)), "not a point"},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, err := identity.ParseJWKS([]byte(`{"keys":[` + good.JWK("") + `,` + c.keys + `]}`))
			if set != nil || !errors.Is(err, identity.ErrKeySet) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("got %v and %v, want no set and an error with %q", set, err, c.text)
			}
			if !strings.Contains(err.Error(), "key 2") && !strings.Contains(err.Error(), "key 3") {
				t.Errorf("error %q does not name the key", err)
			}
		})
	}
	for _, document := range []string{
		"", "null", "[]", "{}", `{"keys":{}}`, `{"keys":null}`, `{"Keys":[]}`, `{"keys":[1]}`, `{"keys":[],"keys":[]}`,
		`{"keys":[],"KEYS":[]}`, `{"keys":[]}x`,
		"\ufeff" + `{"keys":[]}`, `{"keys":[{"kty":"OKP","kty":"RSA"}]}`, `{"keys":[{"kty":1}]}`, `{"keys":[{"kid":null}]}`,
		`{"keys":[{"a":[[[]]]}]}`,
		good.JWK(""), "<html>", `{"keys":[]` + strings.Repeat(" ", 1<<20) + "}",
	} {
		if set, err := identity.ParseJWKS([]byte(document)); set != nil || !errors.Is(err, identity.ErrKeySet) {
			t.Errorf("set %.40q: got %v and %v, want ErrKeySet", document, set, err)
		}
	}
}

// TestWhySmallOrderKeysAreRefused shows that the standard library takes a signature that nobody made for any message.
func TestWhySmallOrderKeysAreRefused(t *testing.T) {
	neutral := append([]byte{1}, make([]byte, 31)...)
	signature := append(append([]byte{}, neutral...), make([]byte, 32)...)
	for _, message := range []string{"", "any message", "any other"} {
		if !ed25519.Verify(neutral, []byte(message), signature) {
			t.Errorf("crypto/ed25519 refuses %q: the check of points may be needless now", message)
		}
	}
}

func TestRealKeysAreAccepted(t *testing.T) {
	for i := range 64 {
		f := newIssuer(fmt.Sprintf("k%d", i), byte(i))
		if set := f.KeySet(t); set.Len() != 1 {
			t.Fatalf("key %x is not in its set", f.Public())
		}
	}
}

func TestRingAsJWKS(t *testing.T) {
	ring := identitytest.Keyring(t)
	old := identitytest.Sign(t, ring, taskClaims())
	must.Get(ring.Rotate())(t)
	set := must.Get(identity.ParseJWKS(ring.JWKS()))(t)
	v := newVerifier(t, identity.VerifierConfig{Local: identitytest.Keyring(t), Foreign: []identity.Issuer{{Keys: set}}})
	for name, token := range map[string]string{"old": old, "new": identitytest.Sign(t, ring, taskClaims())} {
		if _, err := v.Verify(token, epoch); err != nil {
			t.Errorf("%s token by the published set: %v", name, err)
		}
	}
	var document struct{ Keys []map[string]string }
	must.OK(t, json.Unmarshal(ring.JWKS(), &document))
	for i, key := range document.Keys {
		want := map[string]string{"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": ring.List()[i].ID,
			"x": key["x"]}
		if diff := cmp.Diff(want, key); diff != "" {
			t.Errorf("key %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestOpenIDConfiguration(t *testing.T) {
	const want = `{"issuer":"https://a.example","jwks_uri":"https://a.example/.well-known/jwks.json",` +
		`"id_token_signing_alg_values_supported":["EdDSA"],"response_types_supported":["code"],` +
		`"subject_types_supported":["public"],"claims_supported":["jti","iss","sub","aud","iat","nbf","exp",` +
		`"nomad_namespace","nomad_job_id","nomad_allocation_id","nomad_task","taskapi_role","vault_role",` +
		`"vault_namespace","consul_namespace","extra_claims","taskapi_allocation_life"]}`
	got := string(identity.OpenIDConfiguration("https://a.example", "https://a.example/.well-known/jwks.json"))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
}

func TestOpenFileSourceErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := identity.OpenFileSource(dir); err == nil {
		t.Error("a directory: no error")
	}
	write(t, dir+"/bad", []byte("{"), 0o644)
	if _, err := identity.OpenFileSource(dir + "/bad"); !errors.Is(err, identity.ErrKeySet) ||
		!strings.Contains(err.Error(), dir+"/bad") {
		t.Errorf("a bad file: %v, want ErrKeySet and its name", err)
	}
}

// FuzzParseJWKS checks that what is accepted is a set for encoding/json too, and that its keys are good for one thing
// or another.
func FuzzParseJWKS(f *testing.F) {
	good := newIssuer("good", 'g')
	f.Add([]byte(`{"keys":[` + good.JWK(`,"use":"sig","alg":"EdDSA","key_ops":["verify"]`) + `,` + skippedKey + `]}`))
	f.Add([]byte(`{"keys":[` + withX("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a") + `]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		set, err := identity.ParseJWKS(document)
		if err != nil {
			if set != nil || !errors.Is(err, identity.ErrKeySet) {
				t.Fatalf("got %v and %v", set, err)
			}
			return
		}
		var read struct {
			Keys []map[string]any `json:"keys"`
		}
		if err := json.Unmarshal(document, &read); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", err)
		}
		if set.Len()+len(set.Skipped()) != len(read.Keys) {
			t.Errorf("%d keys and %d passed over, of %d", set.Len(), len(set.Skipped()), len(read.Keys))
		}
	})
}

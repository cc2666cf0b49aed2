package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"taskapi/auth/badtokens"
	"taskapi/identity"
	"taskapi/internal/must"
)

// signers are fresh keys of each kind that other issuers have.
func signers(tb testing.TB) map[string]crypto.Signer {
	tb.Helper()
	all := map[string]crypto.Signer{}
	for name, bits := range map[string]int{"RSA 2048": 2048, "RSA 4096": 4096} {
		key := must.Get(rsa.GenerateKey(rand.Reader, bits))(tb)
		all[name] = key
	}
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		key := must.Get(ecdsa.GenerateKey(curve, rand.Reader))(tb)
		all[curve.Params().Name] = key
	}
	return all
}

// TestAnotherLibraryAgrees has it read the same keys and tokens: what is good here is good there.
func TestAnotherLibraryAgrees(t *testing.T) {
	for name, signer := range signers(t) {
		t.Run(name, func(t *testing.T) {
			key := badtokens.NewKey("k", signer)
			document := `{"keys":[` + key.JWK(`,"use":"sig","alg":"`+key.Algorithm()+`"`) + `]}`
			claims := taskClaims()
			claims.ExpiresAt, claims.IssuedAt, claims.NotBefore = time.Now().Unix()+3600, 0, 0
			token := badtokens.Good{Key: key, Now: time.Now(), Claims: claims}.Token()

			set := must.Get(identity.ParseJWKS([]byte(document)))(t)
			if _, err := newVerifier(t, identity.VerifierConfig{Local: set}).Verify(token, time.Now()); err != nil {
				t.Error(err)
			}

			var keys jose.JSONWebKeySet
			must.OK(t, json.Unmarshal([]byte(document), &keys))
			parsed := must.Get(jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.SignatureAlgorithm(key.Algorithm())}))(t)
			var read struct {
				Task string `json:"nomad_task"`
			}
			if err := parsed.Claims(&keys, &read); err != nil || read.Task != claims.Task {
				t.Errorf("go-jose: %v, task %q", err, read.Task)
			}
		})
	}
}

// rsaJWK returns a JWK with any numbers.
func rsaJWK(modulus *big.Int, exponent int64, more string) string {
	number := func(n *big.Int) string { return base64.RawURLEncoding.EncodeToString(n.Bytes()) }
	return `{"kid":"k","kty":"RSA","n":"` + number(modulus) + `","e":"` + number(big.NewInt(exponent)) + `"` + more + `}`
}

// TestWeakKeys: a weak key of another kind than Ed25519 refuses the whole set, and a key for other purposes or of other
// algorithms is skipped.
func TestWeakKeys(t *testing.T) {
	all := signers(t)
	modulus := all["RSA 2048"].Public().(*rsa.PublicKey).N
	small := new(big.Int).Rsh(modulus, 1) // 2047 bits
	even := new(big.Int).Sub(modulus, big.NewInt(1))
	rsaKey := badtokens.NewKey("k", all["RSA 2048"])
	ecKey := badtokens.NewKey("k", all["P-256"])
	point := ecKey.JWK("")
	x := point[strings.Index(point, `"x":"`)+5:]
	x = x[:strings.Index(x, `"`)]
	const skipped = "skipped"
	for name, test := range map[string]struct{ key, want string }{
		"RSA 2047":            {rsaJWK(small.SetBit(small, 0, 1), 65537, ""), "2047 bits"},
		"RSA even":            {rsaJWK(even, 65537, ""), "even"},
		"exponent 1":          {rsaJWK(modulus, 1, ""), "e is not an odd number"},
		"exponent 3":          {rsaJWK(modulus, 3, ""), "e is not an odd number"},
		"exponent 65536":      {rsaJWK(modulus, 65536, ""), "e is not an odd number"},
		"exponent 2^32+1":     {rsaJWK(modulus, 1<<32+1, ""), "e is not an odd number"},
		"no n":                {`{"kid":"k","kty":"RSA","e":"AQAB"}`, "n is not a number"},
		"n padded":            {`{"kid":"k","kty":"RSA","n":"AQAB==","e":"AQAB"}`, "n is not a number"},
		"private RSA":         {rsaKey.JWK(`,"d":"AAAA"`), "private"},
		"RSA for ES256":       {rsaKey.JWK(`,"alg":"ES256"`), "alg is ES256"},
		"RSA for EdDSA":       {rsaKey.JWK(`,"alg":"EdDSA"`), "alg is EdDSA"},
		"RSA for HS256":       {rsaKey.JWK(`,"alg":"HS256"`), "alg is HS256"},
		"EC for RS256":        {ecKey.JWK(`,"alg":"RS256"`), "alg is RS256"},
		"EC for another size": {ecKey.JWK(`,"alg":"ES384"`), "alg is ES384"},
		"off the curve":       {`{"kid":"k","kty":"EC","crv":"P-256","x":"` + x + `","y":"` + x + `"}`, "no point"},
		"x of another size":   {`{"kid":"k","kty":"EC","crv":"P-384","x":"` + x + `","y":"` + x + `"}`, "x is not 48 bytes"},
		"no y":                {`{"kid":"k","kty":"EC","crv":"P-256","x":"` + x + `"}`, "y is not 32 bytes"},

		"RSA 8192": {rsaJWK(new(big.Int).SetBit(new(big.Int).Lsh(big.NewInt(1), 8191), 0, 1), 65537, ""), skipped},
		"PSS":      {rsaKey.JWK(`,"alg":"PS256"`), skipped}, "OAEP": {rsaKey.JWK(`,"alg":"RSA-OAEP"`), skipped},
		"RSA for encryption": {rsaKey.JWK(`,"use":"enc"`), skipped},
		"X.509 of SPIFFE":    {ecKey.JWK(`,"use":"x509-svid","x5c":["AAAA"]`), skipped},
		"secp256k1":          {`{"kid":"k","kty":"EC","crv":"secp256k1","x":"` + x + `","y":"` + x + `"}`, skipped},
		"to sign":            {rsaKey.JWK(`,"key_ops":["sign"]`), skipped},
		"no kid":             {strings.Replace(rsaKey.JWK(""), `"kid":"k",`, "", 1), skipped},
		"of a path":          {strings.Replace(rsaKey.JWK(""), `"kid":"k"`, `"kid":"../k"`, 1), skipped},

		"JWT of SPIFFE": {ecKey.JWK(`,"use":"jwt-svid"`), ""},
		"RS512":         {rsaKey.JWK(`,"alg":"RS512"`), ""},
		"a zero before n": {strings.Replace(rsaKey.JWK(""), `"n":"`+base64URL(string(modulus.Bytes())),
			`"n":"`+base64URL("\x00"+string(modulus.Bytes())), 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := identity.ParseJWKS([]byte(`{"keys":[` + newIssuer("good", 'g').JWK("") + "," + test.key + `]}`))
			switch test.want {
			case "", skipped:
				ids := []string{"good"}
				if test.want == "" {
					ids = []string{"good", "k"}
				}
				if err != nil || !slices.Equal(set.IDs(), ids) || len(set.Skipped()) != 3-1-len(ids) {
					t.Errorf("keys %q, skipped %v, %v", set.IDs(), set.Skipped(), err)
				}
			default:
				if !errors.Is(err, identity.ErrKeySet) || !strings.Contains(err.Error(), test.want) ||
					!strings.Contains(err.Error(), "key 2") {
					t.Errorf("%v, want an error that names key 2 and says %q", err, test.want)
				}
			}
		})
	}
}

// TestTheSetDecidesTheAlgorithm: a token whose alg is not that of its key is refused, with a good signature of that alg
// by the same key as well, and a key that comes to be for another algorithm is another key.
func TestTheSetDecidesTheAlgorithm(t *testing.T) {
	key := badtokens.NewKey("k", signers(t)["RSA 2048"])
	token := badtokens.Good{Key: key, Now: epoch, Claims: taskClaims()}.Token()
	set := func(more string) *identity.KeySet {
		return must.Get(identity.ParseJWKS([]byte(`{"keys":[` + key.JWK(more) + `]}`)))(t)
	}
	v := newVerifier(t, identity.VerifierConfig{Local: set("")})
	verified := must.Get(v.Verify(token, epoch))(t)
	other := newVerifier(t, identity.VerifierConfig{Local: set(`,"alg":"RS512"`)})
	if _, err := other.Verify(token, epoch); err == nil || !strings.Contains(err.Error(), "alg is not that of the key") {
		t.Errorf("RS256 by a key for RS512: %v", err)
	}
	if other.Trusts(verified) || !v.Trusts(verified) {
		t.Error("a key for another algorithm is the same key")
	}
}

// BenchmarkOtherAlgorithms reports for each kind of key the ratio of the median times of Verify and of the signature
// alone. It is to be at most 1.25.
func BenchmarkOtherAlgorithms(b *testing.B) {
	for name, signer := range signers(b) {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			key := badtokens.NewKey("k", signer)
			set := must.Get(key.KeySet())(b)
			v := newVerifier(b, identity.VerifierConfig{Local: set})
			token := badtokens.Good{Key: key, Now: epoch, Claims: taskClaims()}.Token()
			cut := strings.LastIndexByte(token, '.')
			signature := must.Get(base64.RawURLEncoding.DecodeString(token[cut+1:]))(b)
			verify := rawVerify(signer.Public(), token[:cut], signature)
			var whole, raw []time.Duration
			for b.Loop() {
				start := time.Now()
				_, err := v.Verify(token, epoch)
				between := time.Now()
				ok := verify()
				whole, raw = append(whole, between.Sub(start)), append(raw, time.Since(between))
				if err != nil || !ok {
					b.Fatal("refused:", err)
				}
			}
			slices.Sort(whole)
			slices.Sort(raw)
			b.ReportMetric(float64(whole[len(whole)/2])/float64(raw[len(raw)/2]), "×raw")
		})
	}
}

// rawVerify returns a verification by the standard library alone.
func rawVerify(public crypto.PublicKey, text string, signature []byte) func() bool {
	sum := func(hash crypto.Hash) []byte {
		h := hash.New()
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	switch public := public.(type) {
	case *rsa.PublicKey:
		return func() bool { return rsa.VerifyPKCS1v15(public, crypto.SHA256, sum(crypto.SHA256), signature) == nil }
	case *ecdsa.PublicKey:
		hash := map[int]crypto.Hash{256: crypto.SHA256, 384: crypto.SHA384, 521: crypto.SHA512}[public.Params().BitSize]
		half := len(signature) / 2
		return func() bool {
			r, s := new(big.Int).SetBytes(signature[:half]), new(big.Int).SetBytes(signature[half:])
			return ecdsa.Verify(public, sum(hash), r, s)
		}
	}
	return func() bool { return false }
}

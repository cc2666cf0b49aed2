package badtokens

import (
	"bytes"
	"compress/flate"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"taskapi/auth"
)

func headers() []Kind {
	return slices.Concat(embeddedKeys(), extensions(), ambiguousHeaders(), types(), headerTexts())
}

// embeddedKeys are tokens that bring, or name, the key that they are to be verified with (CVE-2018-0114).
func embeddedKeys() []Kind {
	// by returns a token that a key nobody trusts has signed.
	by := func(name, wrong string, member func(Key) string) Kind {
		return kind(name, wrong, auth.BadHeader, func(b base) string {
			k := stranger(b.Key.ID)
			other := base{Good{Key: k}}
			return other.token(headerOf("EdDSA", b.Key.ID, ","+member(k)), b.claims().String())
		})
	}
	return []Kind{
		by("jwk", "signed by the key that its header holds", func(k Key) string { return `"jwk":` + jwk(k.Public()) }),
		by("jku", "signed by a key that is to be fetched from a URL in its header", func(Key) string { return `"jku":"https://keys.invalid/jwks.json"` }),
		by("x5u", "signed by a key whose certificate is to be fetched from a URL in its header", func(Key) string { return `"x5u":"https://keys.invalid/key.pem"` }),
		by("x5c", "signed by the key of a certificate in its header, which has signed itself", func(k Key) string {
			return `"x5c":["` + base64.StdEncoding.EncodeToString(certificate(k)) + `"]`
		}),
		kind("jwk-es256", "signed with ES256 by the key that its header holds", auth.BadHeader, func(b base) string { return signedES256(b) }),
		kind("jwk-rs256", "signed with RS256 by the key that its header holds", auth.BadHeader, func(b base) string { return signedRS256(b) }),
		kind("jwk-hs256", "HS256 with the secret that its header holds", auth.BadHeader, func(b base) string {
			signed := encode(headerOf("HS256", b.Key.ID, `,"jwk":{"kty":"oct","k":"`+encode("secret")+`"}`)) + "." + encode(b.claims().String())
			mac := hmac.New(sha256.New, []byte("secret"))
			mac.Write([]byte(signed))
			return signed + "." + encode(string(mac.Sum(nil)))
		}),
		kind("jwk-small-order", "a key of small order in its header, for which one signature is that of every text", auth.BadHeader, func(b base) string {
			identity := append([]byte{1}, make([]byte, 31)...) // the neutral element as a public key, and as R; S is 0
			return encode(headerOf("EdDSA", b.Key.ID, `,"jwk":`+jwk(identity))) + "." + encode(b.claims().String()) + "." +
				encode(string(identity)+strings.Repeat("\x00", 32))
		}),
		kind("x5t", "the thumbprint of a certificate in its header", auth.BadHeader, withMember(`"x5t":"AAAA"`)).strict(),
		kind("x5t-s256", "the SHA-256 thumbprint of a certificate in its header", auth.BadHeader, withMember(`"x5t#S256":"AAAA"`)).strict(),
	}
}

// withMember returns a maker of tokens whose header has one more member, signed well.
func withMember(member string) func(base) string {
	return func(b base) string { return b.withHeader(b.header("," + member)) }
}

// jwk returns a public key as a JWK (RFC 8037).
func jwk(key ed25519.PublicKey) string {
	return `{"kty":"OKP","crv":"Ed25519","x":"` + encode(string(key)) + `"}`
}

// certificate returns one that the key has signed for itself.
func certificate(k Key) []byte {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nobody"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k.signer)
	if err != nil {
		panic("badtokens: make a certificate: " + err.Error()) // everything in it is a constant
	}
	return der
}

// ecdsaKey and rsaKey are keys that nobody trusts, made when they are first needed.
var (
	ecdsaKey = sync.OnceValue(func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic("badtokens: make an ECDSA key: " + err.Error())
		}
		return key
	})
	rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic("badtokens: make an RSA key: " + err.Error())
		}
		return key
	})
)

func signedES256(b base) string {
	key := ecdsaKey()
	point, err := key.PublicKey.Bytes()
	if err != nil {
		panic("badtokens: encode a point: " + err.Error())
	}
	member := `,"jwk":{"kty":"EC","crv":"P-256","x":"` + encode(string(point[1:33])) + `","y":"` + encode(string(point[33:])) + `"}`
	signed := encode(headerOf("ES256", b.Key.ID, member)) + "." + encode(b.claims().String())
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		panic("badtokens: sign with ECDSA: " + err.Error())
	}
	return signed + "." + encode(string(r.FillBytes(make([]byte, 32)))+string(s.FillBytes(make([]byte, 32))))
}

func signedRS256(b base) string {
	key := rsaKey()
	member := `,"jwk":{"kty":"RSA","n":"` + encode(string(key.N.Bytes())) + `","e":"AQAB"}`
	signed := encode(headerOf("RS256", b.Key.ID, member)) + "." + encode(b.claims().String())
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		panic("badtokens: sign with RSA: " + err.Error())
	}
	return signed + "." + encode(string(signature))
}

// extensions are members that ask for something to be understood, or ignored.
func extensions() []Kind {
	header := func(name, wrong, member string) Kind { return kind(name, wrong, auth.BadHeader, withMember(member)) }
	return slices.Concat([]Kind{
		header("crit-unknown", "crit names an extension that nobody knows (CVE-2025-59420)", `"crit":["https://example.com/extension"],"https://example.com/extension":true`),
		header("crit-exp", "crit names exp, which is no extension and is not there", `"crit":["exp"]`),
		header("b64-false-in-crit", "crit names b64, which is false (RFC 7797): the claims are said not to be base64", `"crit":["b64"],"b64":false`),
	}, strictly(
		header("crit-empty", "crit is empty", `"crit":[]`),
		header("b64-false", "b64 is false, and no crit names it", `"b64":false`),
		header("b64-true", "b64 is true", `"b64":true`),
		header("zip", "zip, and claims that are not compressed", `"zip":"DEF"`),
		kind("zip-deflated", "zip, and claims that are compressed (CVE-2024-28180)", auth.BadHeader, func(b base) string {
			return b.token(b.header(`,"zip":"DEF"`), deflated(b.claims().String()))
		}),
		header("enc", "enc, as an encrypted token has", `"enc":"A256GCM"`),
		header("cty-jwt", "cty JWT: the claims are said to be another token", `"cty":"JWT"`),
		kind("nested-jwt", "cty JWT, and a good token in the place of the claims (RFC 7519 section 5.2)", auth.BadHeader, func(b base) string {
			return b.token(b.header(`,"cty":"JWT"`), b.Token())
		}),
		header("epk", "epk, the key of an encryption", `"epk":{}`),
		header("nonce", "nonce, as of ACME", `"nonce":"x"`),
		header("url", "url, as of ACME", `"url":"http://127.0.0.1/"`),
		header("member-unknown", "a member that nobody knows", `"unknown":null`),
		header("member-without-name", "a member with an empty name", `"":""`),
	))
}

// deflated returns a text compressed as zip DEF means it (RFC 1951).
func deflated(text string) string {
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, flate.BestCompression) // the level exists
	_, _ = w.Write([]byte(text))                         // memory takes everything
	_ = w.Close()
	return out.String()
}

// ambiguousHeaders are read differently by different readers.
func ambiguousHeaders() []Kind {
	header := func(name, wrong string, make func(kid string) string) Kind {
		return kind(name, wrong, auth.BadHeader, func(b base) string { return b.withHeader(make(quote(b.Key.ID))) }).strict()
	}
	return []Kind{
		header("alg-twice-none-first", "alg twice, none first", func(kid string) string { return `{"alg":"none","alg":"EdDSA","kid":` + kid + `}` }),
		header("alg-twice-none-last", "alg twice, none last", func(kid string) string { return `{"alg":"EdDSA","kid":` + kid + `,"alg":"none"}` }),
		header("alg-twice-equal", "alg twice, and the same", func(kid string) string { return `{"alg":"EdDSA","kid":` + kid + `,"alg":"EdDSA"}` }),
		header("alg-twice-escaped", "alg twice, once with an escape in its name", func(kid string) string { return `{"alg":"EdDSA","kid":` + kid + `,"\u0061lg":"none"}` }),
		header("alg-in-two-cases", "alg, and Alg with another value", func(kid string) string { return `{"alg":"EdDSA","kid":` + kid + `,"Alg":"none"}` }),
		header("kid-twice", "kid twice", func(kid string) string { return `{"alg":"EdDSA","kid":"other","kid":` + kid + `}` }),
		header("kid-in-two-cases", "kid, and KID with another value", func(kid string) string { return `{"alg":"EdDSA","KID":"other","kid":` + kid + `}` }),
		header("typ-twice", "typ twice", func(kid string) string { return `{"alg":"EdDSA","kid":` + kid + `,"typ":"JWT","typ":"JWT"}` }),
	}
}

// types are values of typ for other things than a token like ours (RFC 8725 section 3.11).
func types() []Kind {
	var kinds []Kind
	for _, t := range []struct{ name, wrong, typ string }{
		{"typ-lower-case", "typ jwt in small letters", `"jwt"`},
		{"typ-at-jwt", "typ of an OAuth access token (RFC 9068)", `"at+jwt"`},
		{"typ-jwe", "typ of an encrypted token", `"JWE"`},
		{"typ-jose", "typ of another object", `"JOSE"`},
		{"typ-empty", "an empty typ", `""`},
		{"typ-null", "typ null", `null`},
		{"typ-number", "typ a number", `1`},
		{"typ-array", "typ an array", `["JWT"]`},
	} {
		kinds = append(kinds, kind(t.name, t.wrong, auth.BadHeader, func(b base) string {
			return b.withHeader(`{"alg":"EdDSA","kid":` + quote(b.Key.ID) + `,"typ":` + t.typ + `}`)
		}).strict())
	}
	return kinds
}

// headerTexts are headers that are not the JSON of one object.
func headerTexts() []Kind {
	header := func(name, wrong string, make func(good string) string) Kind {
		return kind(name, wrong, auth.BadHeader, func(b base) string { return b.withHeader(make(b.header(""))) })
	}
	constant := func(text string) func(string) string { return func(string) string { return text } }
	return []Kind{
		header("header-null", "a header that is null", constant("null")),
		header("header-array", "a header that is an array", constant("[]")),
		header("header-string", "a header that is a string", constant(`"EdDSA"`)),
		header("header-number", "a header that is a number", constant("1")),
		header("header-cut", "a header without its last brace", func(good string) string { return strings.TrimSuffix(good, "}") }),
		header("header-trailing-brace", "a brace after the header", func(good string) string { return good + "}" }),
		header("header-trailing-text", "text after the header", func(good string) string { return good + "x" }),
		header("header-twice", "the header twice", func(good string) string { return good + good }),
		header("header-byte-order-mark", "a byte order mark before the header", func(good string) string { return "\ufeff" + good }),
		header("header-nul", "a NUL byte after the header", func(good string) string { return good + "\x00" }),
		header("header-trailing-comma", "a comma after the header's last member", func(good string) string { return strings.TrimSuffix(good, "}") + ",}" }),
		header("header-single-quotes", "single quotes in the header", func(good string) string { return strings.ReplaceAll(good, `"`, `'`) }),
		header("header-comment", "a comment before the header", func(good string) string { return "// c\n" + good }),
		header("header-not-utf8", "a name in the header that is not UTF-8", func(good string) string {
			return strings.TrimSuffix(good, "}") + ",\"\xff\":1}"
		}).strict(),
	}
}

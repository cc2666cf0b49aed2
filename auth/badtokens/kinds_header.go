package badtokens

import (
	"bytes"
	"compress/flate"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"math/big"
	"slices"
	"strings"
	"time"

	"taskapi/auth"
)

func headerKinds() []Kind {
	return slices.Concat(
		// The token brings, or names, the key that it is to be verified with (CVE-2018-0114).
		kinds(auth.BadHeader, []row{
			{"jwk", "signed by the key that its header holds",
				embedded(func(k Key) string { return `"jwk":{` + k.members() + "}" })},
			{"jku", "signed by a key that is to be fetched from a URL in its header",
				embedded(func(Key) string { return `"jku":"https://keys.invalid/jwks.json"` })},
			{"x5u", "signed by a key whose certificate is to be fetched from a URL in its header",
				embedded(func(Key) string { return `"x5u":"https://keys.invalid/key.pem"` })},
			{"x5c", "signed by the key of a certificate in its header, which has signed itself", embedded(certificate)},
			{"jwk-es256", "signed with ES256 by the key that its header holds", signedBy(ecdsaKey)},
			{"jwk-rs256", "signed with RS256 by the key that its header holds", signedBy(rsaKey)},
			{"jwk-hs256", "HS256 with the secret that its header holds", func(b base) string {
				header := headerOf("HS256", b.Key.ID, `,"jwk":{"kty":"oct","k":"`+encode("secret")+`"}`)
				return b.authenticated(header, sha256.New, "secret")
			}},
			{"jwk-small-order", "a key of small order in its header, for which one signature is that of every text",
				func(b base) string {
					identity := "\x01" + strings.Repeat("\x00", 31) // the neutral element as a public key, and as R; S is 0
					text := b.unsigned(headerOf("EdDSA", b.Key.ID, `,"jwk":{"kty":"OKP","crv":"Ed25519","x":"`+encode(identity)+`"}`))
					return text + "." + encode(identity+strings.Repeat("\x00", 32))
				}},
		}), strict(auth.BadHeader, []row{
			{"x5t", "the thumbprint of a certificate in its header", member(`"x5t":"AAAA"`)},
			{"x5t-s256", "the SHA-256 thumbprint of a certificate in its header", member(`"x5t#S256":"AAAA"`)},
		}),
		// Members that ask for something to be understood, or ignored.
		kinds(auth.BadHeader, []row{
			{"crit-unknown", "crit names an extension that nobody knows (CVE-2025-59420)",
				member(`"crit":["https://example.com/extension"],"https://example.com/extension":true`)},
			{"crit-exp", "crit names exp, which is no extension and is not there", member(`"crit":["exp"]`)},
			{"b64-false-in-crit", "crit names b64, which is false (RFC 7797): the claims are said not to be base64",
				member(`"crit":["b64"],"b64":false`)},
		}), strict(auth.BadHeader, []row{
			{"crit-empty", "crit is empty", member(`"crit":[]`)},
			{"b64-false", "b64 is false, and no crit names it", member(`"b64":false`)},
			{"b64-true", "b64 is true", member(`"b64":true`)},
			{"zip", "zip, and claims that are not compressed", member(`"zip":"DEF"`)},
			{"zip-deflated", "zip, and claims that are compressed (CVE-2024-28180)", func(b base) string {
				return b.token(b.header(`,"zip":"DEF"`), deflated(b.claims().String()))
			}},
			{"enc", "enc, as an encrypted token has", member(`"enc":"A256GCM"`)},
			{"cty-jwt", "cty JWT: the claims are said to be another token", member(`"cty":"JWT"`)},
			{"nested-jwt", "cty JWT, and a good token in the place of the claims (RFC 7519 section 5.2)",
				func(b base) string { return b.token(b.header(`,"cty":"JWT"`), b.Token()) }},
			{"epk", "epk, the key of an encryption", member(`"epk":{}`)},
			{"nonce", "nonce, as of ACME", member(`"nonce":"x"`)},
			{"url", "url, as of ACME", member(`"url":"http://127.0.0.1/"`)},
			{"member-unknown", "a member that nobody knows", member(`"unknown":null`)},
			{"member-without-name", "a member with an empty name", member(`"":""`)},
		}),
		// Headers that different readers read differently.
		strict(auth.BadHeader, []row{
			{"alg-twice-none-first", "alg twice, none first", header(`{"alg":"none","alg":%a,"kid":%k}`)},
			{"alg-twice-none-last", "alg twice, none last", header(`{"alg":%a,"kid":%k,"alg":"none"}`)},
			{"alg-twice-equal", "alg twice, and the same", header(`{"alg":%a,"kid":%k,"alg":%a}`)},
			{"alg-twice-escaped", "alg twice, once with an escape in its name",
				header(`{"alg":%a,"kid":%k,"\u0061lg":"none"}`)},
			{"alg-in-two-cases", "alg, and Alg with another value", header(`{"alg":%a,"kid":%k,"Alg":"none"}`)},
			{"kid-twice", "kid twice", header(`{"alg":%a,"kid":"other","kid":%k}`)},
			{"kid-in-two-cases", "kid, and KID with another value", header(`{"alg":%a,"KID":"other","kid":%k}`)},
			{"typ-twice", "typ twice", header(`{"alg":%a,"kid":%k,"typ":"JWT","typ":"JWT"}`)},
		}),
		// Values of typ for other things than a workload identity (RFC 8725 section 3.11).
		strict(auth.BadHeader, []row{
			{"typ-lower-case", "typ jwt in small letters", typ(`"jwt"`)},
			{"typ-at-jwt", "typ of an OAuth access token (RFC 9068)", typ(`"at+jwt"`)},
			{"typ-jwe", "typ of an encrypted token", typ(`"JWE"`)},
			{"typ-jose", "typ of another object", typ(`"JOSE"`)},
			{"typ-empty", "an empty typ", typ(`""`)},
			{"typ-null", "typ null", typ(`null`)},
			{"typ-number", "typ a number", typ(`1`)},
			{"typ-array", "typ an array", typ(`["JWT"]`)},
		}),
		// Headers that are not the JSON of one object.
		kinds(auth.BadHeader, []row{
			{"header-null", "a header that is null", header("null")},
			{"header-array", "a header that is an array", header("[]")},
			{"header-string", "a header that is a string", header(`"EdDSA"`)},
			{"header-number", "a header that is a number", header("1")},
			{"header-cut", "a header without its last brace", header("%H")},
			{"header-trailing-brace", "a brace after the header", header("%h}")},
			{"header-trailing-text", "text after the header", header("%hx")},
			{"header-twice", "the header twice", header("%h%h")},
			{"header-byte-order-mark", "a byte order mark before the header", header("\ufeff%h")},
			{"header-nul", "a NUL byte after the header", header("%h\x00")},
			{"header-trailing-comma", "a comma after the header's last member", header("%H,}")},
			{"header-single-quotes", "single quotes in the header", func(b base) string {
				return b.withHeader(strings.ReplaceAll(b.header(""), `"`, `'`))
			}},
			{"header-comment", "a comment before the header", header("// c\n%h")},
		}), strict(auth.BadHeader, []row{
			{"header-not-utf8", "a name in the header that is not UTF-8", header("%H,\"\xff\":1}")},
		}))
}

func typ(value string) maker { return header(`{"alg":%a,"kid":%k,"typ":` + value + `}`) }

// embedded makes a token that a stranger's key has signed, with one more member in its header.
func embedded(member func(Key) string) maker {
	return func(b base) string {
		other := base{Good{Key: b.Key.stranger()}}
		return other.token(other.header(","+member(other.Key)), b.claims().String())
	}
}

// certificate returns a header's member with a certificate that the key has signed for itself.
func certificate(k Key) string {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nobody"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, k.Public(), k.signer))
	return `"x5c":["` + base64.StdEncoding.EncodeToString(der) + `"]`
}

// signedBy makes a token that a key of another kind has signed, which its header holds.
func signedBy[S crypto.Signer](signer func() S) maker {
	return func(b base) string {
		k := NewKey(b.Key.ID, signer())
		text := b.unsigned(headerOf(k.Algorithm(), b.Key.ID, `,"jwk":{`+k.members()+"}"))
		return text + "." + encode(string(k.Sign(text)))
	}
}

// deflated returns a text compressed as zip DEF means it (RFC 1951).
func deflated(text string) string {
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, flate.BestCompression) // the level exists
	_, _ = w.Write([]byte(text))                         // memory takes everything
	_ = w.Close()
	return out.String()
}

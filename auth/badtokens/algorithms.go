package badtokens

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"hash"

	"taskapi/auth"
)

func algorithms() []Kind {
	alg := func(name, wrong string, make func(base) string) Kind {
		return kind(name, wrong, auth.BadAlgorithm, make)
	}
	var kinds []Kind
	for _, none := range []struct{ name, alg string }{
		{"alg-none", "none"}, {"alg-none-title-case", "None"}, {"alg-none-upper-case", "NONE"}, {"alg-none-mixed-case", "nOnE"},
	} {
		kinds = append(kinds, alg(none.name, "alg "+none.alg+", and no signature (CVE-2015-9235)", func(b base) string {
			return encode(headerOf(none.alg, b.Key.ID, "")) + "." + encode(b.claims().String()) + "."
		}))
	}
	for _, h := range []struct {
		name, alg, secret string
		hash              func() hash.Hash
		key               func(Key) string
	}{
		{"alg-hs256", "HS256", "the bytes of the public key", sha256.New, func(k Key) string { return string(k.Public()) }},
		{"alg-hs384", "HS384", "the bytes of the public key", sha512.New384, func(k Key) string { return string(k.Public()) }},
		{"alg-hs512", "HS512", "the bytes of the public key", sha512.New, func(k Key) string { return string(k.Public()) }},
		{"alg-hs256-base64url", "HS256", "the public key as the x of a JWK", sha256.New, func(k Key) string { return encode(string(k.Public())) }},
		{"alg-hs256-ssh", "HS256", "the public key as ssh writes it (CVE-2022-29217)", sha256.New, sshKey},
		{"alg-hs256-pem", "HS256", "the public key as PEM", sha256.New, pemKey},
		{"alg-hs256-empty-secret", "HS256", "nothing", sha256.New, func(Key) string { return "" }},
	} {
		kinds = append(kinds, alg(h.name, h.alg+" with "+h.secret+" as the secret", func(b base) string {
			signed := encode(headerOf(h.alg, b.Key.ID, "")) + "." + encode(b.claims().String())
			mac := hmac.New(h.hash, []byte(h.key(b.Key)))
			mac.Write([]byte(signed))
			return signed + "." + encode(string(mac.Sum(nil)))
		}))
	}
	for _, other := range []struct{ name, alg string }{
		{"alg-none-signed", "none"}, {"alg-rs256", "RS256"}, {"alg-rs512", "RS512"}, {"alg-ps256", "PS256"}, {"alg-es256", "ES256"}, {"alg-es256k", "ES256K"},
		{"alg-hs256-signed", "HS256"}, {"alg-ed448", "Ed448"}, {"alg-eddsa-lower-case", "eddsa"}, {"alg-eddsa-upper-case", "EDDSA"},
		{"alg-eddsa-blank", "EdDSA "}, {"alg-empty", ""}, {"alg-dir", "dir"},
	} {
		kinds = append(kinds, alg(other.name, "alg "+quote(other.alg)+", and a good signature by Ed25519", func(b base) string {
			return b.withHeader(headerOf(other.alg, b.Key.ID, ""))
		}))
	}
	header := func(name, wrong, header string, reason auth.Reason) Kind {
		return kind(name, wrong, reason, func(b base) string { return b.withHeader(`{` + header + `"kid":` + quote(b.Key.ID) + `}`) })
	}
	return append(kinds,
		alg("alg-ed25519", "alg Ed25519, the name of RFC 9864", func(b base) string { return b.withHeader(headerOf("Ed25519", b.Key.ID, "")) }).strict(),
		header("alg-missing", "no alg", ``, auth.BadAlgorithm),
		header("alg-null", "alg null", `"alg":null,`, auth.BadHeader),
		header("alg-array", "alg an array", `"alg":["EdDSA"],`, auth.BadHeader),
		header("alg-number", "alg a number", `"alg":0,`, auth.BadHeader),
		header("alg-name-upper-case", "ALG instead of alg", `"ALG":"EdDSA",`, auth.BadHeader).strict(),
		alg("header-empty-object", "a header without members", func(b base) string { return b.withHeader("{}") }),
	)
}

// sshKey returns the key as a line of authorized_keys (RFC 8709).
func sshKey(k Key) string {
	blob := "\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + string(k.Public())
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString([]byte(blob))
}

func pemKey(k Key) string {
	der, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		panic("badtokens: encode an Ed25519 key: " + err.Error()) // its type is known
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

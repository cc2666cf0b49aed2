package badtokens

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"hash"
	"slices"

	"taskapi/auth"
)

func algorithmKinds() []Kind {
	return slices.Concat(kinds(auth.BadAlgorithm, []row{
		{"alg-none", "alg none, and no signature (CVE-2015-9235)", unsigned("none")},
		{"alg-none-title-case", "alg None, and no signature (CVE-2015-9235)", unsigned("None")},
		{"alg-none-upper-case", "alg NONE, and no signature (CVE-2015-9235)", unsigned("NONE")},
		{"alg-none-mixed-case", "alg nOnE, and no signature (CVE-2015-9235)", unsigned("nOnE")},
		{"alg-hs256", "HS256 with the bytes of the public key as the secret", symmetric("HS256", sha256.New, keyBytes)},
		{"alg-hs384", "HS384 with the bytes of the public key as the secret", symmetric("HS384", sha512.New384, keyBytes)},
		{"alg-hs512", "HS512 with the bytes of the public key as the secret", symmetric("HS512", sha512.New, keyBytes)},
		{"alg-hs256-base64url", "HS256 with the public key as the x of a JWK as the secret",
			symmetric("HS256", sha256.New, func(k Key) string { return encode(keyBytes(k)) })},
		{"alg-hs256-ssh", "HS256 with the public key as ssh writes it (CVE-2022-29217) as the secret",
			symmetric("HS256", sha256.New, sshKey)},
		{"alg-hs256-pem", "HS256 with the public key as PEM as the secret", symmetric("HS256", sha256.New, pemKey)},
		{"alg-hs256-empty-secret", "HS256 with nothing as the secret",
			symmetric("HS256", sha256.New, func(Key) string { return "" })},
		{"alg-none-signed", `alg "none", and a good signature of the key's own algorithm`, alg("none")},
		{"alg-rs256", `alg "RS256", and a good signature of the key's own algorithm`, alg("RS256")},
		{"alg-rs512", `alg "RS512", and a good signature of the key's own algorithm`, alg("RS512")},
		{"alg-ps256", `alg "PS256", and a good signature of the key's own algorithm`, alg("PS256")},
		{"alg-es256", `alg "ES256", and a good signature of the key's own algorithm`, alg("ES256")},
		{"alg-rs384", `alg "RS384", and a good signature of the key's own algorithm`, alg("RS384")},
		{"alg-es384", `alg "ES384", and a good signature of the key's own algorithm`, alg("ES384")},
		{"alg-es512", `alg "ES512", and a good signature of the key's own algorithm`, alg("ES512")},
		{"alg-es256k", `alg "ES256K", and a good signature of the key's own algorithm`, alg("ES256K")},
		{"alg-hs256-signed", `alg "HS256", and a good signature of the key's own algorithm`, alg("HS256")},
		{"alg-ed448", `alg "Ed448", and a good signature of the key's own algorithm`, alg("Ed448")},
		{"alg-eddsa-lower-case", `alg "eddsa", and a good signature of the key's own algorithm`, alg("eddsa")},
		{"alg-eddsa-upper-case", `alg "EDDSA", and a good signature of the key's own algorithm`, alg("EDDSA")},
		{"alg-eddsa-blank", `alg "EdDSA ", and a good signature of the key's own algorithm`, alg("EdDSA ")},
		{"alg-empty", `alg "", and a good signature of the key's own algorithm`, alg("")},
		{"alg-dir", `alg "dir", and a good signature of the key's own algorithm`, alg("dir")},
		{"alg-missing", "no alg", header(`{"kid":%k}`)},
		{"header-empty-object", "a header without members", header("{}")},
	}), forKeys("RS ES", kinds(auth.BadAlgorithm, []row{
		{"alg-eddsa", `alg "EdDSA", and a good signature of the key's own algorithm`, alg("EdDSA")},
	})), strict(auth.BadAlgorithm, []row{
		{"alg-ed25519", "alg Ed25519, the name of RFC 9864", alg("Ed25519")},
	}), kinds(auth.BadHeader, []row{
		{"alg-null", "alg null", header(`{"alg":null,"kid":%k}`)},
		{"alg-array", "alg an array", header(`{"alg":[%a],"kid":%k}`)},
		{"alg-number", "alg a number", header(`{"alg":0,"kid":%k}`)},
	}), strict(auth.BadHeader, []row{
		{"alg-name-upper-case", "ALG instead of alg", header(`{"ALG":%a,"kid":%k}`)},
	}))
}

func unsigned(alg string) maker {
	return func(b base) string { return b.unsigned(headerOf(alg, b.Key.ID, "")) + "." }
}

// symmetric makes a token whose signature is an HMAC with a secret that everybody can know.
func symmetric(alg string, hash func() hash.Hash, secret func(Key) string) maker {
	return func(b base) string { return b.authenticated(headerOf(alg, b.Key.ID, ""), hash, secret(b.Key)) }
}

// authenticated returns a token with an HMAC.
func (b base) authenticated(header string, hash func() hash.Hash, secret string) string {
	text := b.unsigned(header)
	mac := hmac.New(hash, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + encode(string(mac.Sum(nil)))
}

// sshKey returns an Ed25519 key as a line of authorized_keys (RFC 8709), and another key's bytes in such a line.
func sshKey(k Key) string {
	blob := "\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + keyBytes(k)
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString([]byte(blob))
}

func pemKey(k Key) string {
	der := must(x509.MarshalPKIXPublicKey(k.Public()))
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

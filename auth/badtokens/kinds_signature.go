package badtokens

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"math/big"
	"slices"

	"taskapi/auth"
)

func signatureKinds() []Kind {
	return slices.Concat(kinds(auth.Malformed, []row{
		{"signature-of-63-bytes", "a signature without its last byte",
			resigned(func(good []byte) []byte { return good[:63] })},
	}), forKeys("EdDSA ES", kinds(auth.Malformed, []row{ // a signature of RSA may be as long
		{"signature-of-65-bytes", "a signature with a byte after it",
			resigned(func(good []byte) []byte { return append(good, 0) })},
		{"signature-of-1024-bytes", "a signature of 1024 zeros", resigned(func([]byte) []byte { return make([]byte, 1024) })},
	})), forKeys("EdDSA", kinds(auth.BadSignature, []row{
		{"signature-small-order", "a signature that is good for keys of small order",
			resigned(func([]byte) []byte { return append([]byte{1}, make([]byte, 63)...) })},
		{"signature-malleable", "S of the signature plus the order of the group (RFC 8032 section 8.4)", resigned(malleated)},
	})), forKeys("ES", kinds(auth.Malformed, []row{
		{"signature-der", "a signature in DER, as other protocols have it", func(b base) string {
			hash := ecdsaAlgorithms[b.Key.Public().(*ecdsa.PublicKey).Params().BitSize].hash
			return b.hashed(hash)
		}},
	})), forKeys("RS", kinds(auth.BadSignature, []row{
		{"signature-pss", "a signature as PS256 has it",
			func(b base) string { return b.hashed(&rsa.PSSOptions{Hash: crypto.SHA256}) }},
		{"signature-sha512", "a signature as RS512 has it", func(b base) string { return b.hashed(crypto.SHA512) }},
	})), kinds(auth.BadSignature, []row{
		{"signature-zero", "a signature of zeros",
			resigned(func(good []byte) []byte { return make([]byte, len(good)) })},
		{"signature-ones", "a signature of ones",
			resigned(func(good []byte) []byte { return bytes.Repeat([]byte{0xff}, len(good)) })},
		{"tampered-signature", "a bit of the signature is another", resigned(func(good []byte) []byte {
			good[10] ^= 1
			return good
		})},
		{"signature-of-claims-alone", "a signature of the claims without the header", signatureOf("%c")},
		{"signature-of-header-alone", "a signature of the header without the claims", signatureOf("%h")},
		{"signature-of-another-token", "the signature of another good token", func(b base) string {
			another := encode(b.header("")) + "." + encode(b.claims().with("jti", `"another"`).String())
			return b.segments("%h.%c.") + encode(string(b.Key.Sign(another)))
		}},
		{"tampered", "claims that were changed after they were signed", func(b base) string {
			return b.segments("%h." + encode(b.claims().with("jti", `"tampered"`).String()) + ".%s")
		}},
		{"tampered-header", "a header that was changed after it was signed", func(b base) string {
			return b.segments(encode(`{"alg":`+quote(b.Key.Algorithm())+`,"kid":`+quote(b.Key.ID)+`}`) + ".%c.%s")
		}},
		// Signed by a stranger under the right kid: a bad signature must not hide behind another fault
		// (CVE-2024-51744).
		{"wrong-key", "signed by a key that nobody trusts, under the kid of a trusted one", func(b base) string {
			return forged(b.Key, b.claims())
		}},
		{"wrong-key-expired", "signed by a key that nobody trusts, and expired", func(b base) string {
			return forged(b.Key, b.claims().with("iat", "1").with("nbf", "1").with("exp", "1"))
		}},
		{"wrong-key-audience", "signed by a key that nobody trusts, for another audience", func(b base) string {
			return forged(b.Key, b.claims().with("aud", `"another"`))
		}},
		{"wrong-key-operator", "signed by a key that nobody trusts, for the operator", func(b base) string {
			return forged(b.Key, b.operators())
		}},
		{"wrong-key-lifetime", "signed by a key that nobody trusts, for a thousand years", func(b base) string {
			return forged(b.Key, b.claims().with("exp", big.NewInt(b.Now.Unix()+1000*365*86400).String()))
		}},
	}))
}

// resigned makes a token with another signature than the good one.
func resigned(change func(good []byte) []byte) maker {
	return func(b base) string {
		text := b.unsigned(b.header(""))
		return text + "." + encode(string(change(b.Key.Sign(text))))
	}
}

// hashed returns a token whose signature is another than that of the key's algorithm.
func (b base) hashed(options crypto.SignerOpts) string {
	text := b.unsigned(b.header(""))
	return text + "." + encode(string(b.Key.signHash(text, options)))
}

func signatureOf(part string) maker {
	return func(b base) string { return b.segments("%h.%c.") + encode(string(b.Key.Sign(b.segments(part)))) }
}

// forged returns a token that a key which nobody trusts has signed, under the kid of the good one.
func forged(good Key, claims document) string {
	other := base{Good{Key: good.stranger()}}
	return other.token(other.header(""), claims.String())
}

// groupOrder is the order of Ed25519's group (RFC 8032 section 5.1).
const groupOrder = "7237005577332262213973186563042994240857116359379907606001950938285454250989"

// malleated returns the signature with the order of the group added to S, which solves the same equation.
func malleated(signature []byte) []byte {
	order, _ := new(big.Int).SetString(groupOrder, 10)
	s := slices.Clone(signature[32:])
	slices.Reverse(s)
	s = order.Add(order, new(big.Int).SetBytes(s)).FillBytes(make([]byte, 32))
	slices.Reverse(s)
	return append(slices.Clone(signature[:32]), s...)
}

package badtokens

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"taskapi/auth"
)

func signatures() []Kind {
	// signed returns a maker of tokens with another signature than the good one.
	signed := func(name, wrong string, reason auth.Reason, change func(good []byte, b base, signed string) []byte) Kind {
		return kind(name, wrong, reason, func(b base) string {
			text := encode(b.header("")) + "." + encode(b.claims().String())
			return text + "." + encode(string(change(b.Key.Sign(text), b, text)))
		})
	}
	// forged returns a token that a key nobody trusts has signed under the right kid: a bad signature hides nothing (CVE-2024-51744).
	forged := func(name, wrong string, change func(base) document) Kind {
		return kind(name, wrong, auth.BadSignature, func(b base) string {
			other := base{Good{Key: stranger(b.Key.ID)}}
			return other.token(other.header(""), change(b).String())
		})
	}
	return []Kind{
		signed("signature-of-63-bytes", "a signature without its last byte", auth.Malformed, func(good []byte, _ base, _ string) []byte { return good[:63] }),
		signed("signature-of-65-bytes", "a signature with a byte after it", auth.Malformed, func(good []byte, _ base, _ string) []byte { return append(good, 0) }),
		signed("signature-of-1024-bytes", "a signature of 1024 zeros", auth.Malformed, func([]byte, base, string) []byte { return make([]byte, 1024) }),
		signed("signature-zero", "a signature of zeros", auth.BadSignature, func([]byte, base, string) []byte { return make([]byte, 64) }),
		signed("signature-ones", "a signature of ones", auth.BadSignature, func([]byte, base, string) []byte { return slices.Repeat([]byte{0xff}, 64) }),
		signed("signature-small-order", "a signature that is good for keys of small order", auth.BadSignature, func([]byte, base, string) []byte {
			return append([]byte{1}, make([]byte, 63)...)
		}),
		signed("tampered-signature", "a bit of the signature is another", auth.BadSignature, func(good []byte, _ base, _ string) []byte { good[10] ^= 1; return good }),
		signed("signature-malleable", "S of the signature plus the order of the group (RFC 8032 section 8.4)", auth.BadSignature,
			func(good []byte, _ base, _ string) []byte { return malleated(good) }),
		signed("signature-of-claims-alone", "a signature of the claims without the header", auth.BadSignature, func(_ []byte, b base, text string) []byte {
			return b.Key.Sign(text[strings.IndexByte(text, '.')+1:])
		}),
		signed("signature-of-header-alone", "a signature of the header without the claims", auth.BadSignature, func(_ []byte, b base, text string) []byte {
			return b.Key.Sign(text[:strings.IndexByte(text, '.')])
		}),
		signed("signature-of-another-token", "the signature of another good token", auth.BadSignature, func(_ []byte, b base, _ string) []byte {
			return b.Key.Sign(encode(b.header("")) + "." + encode(b.claims().with("jti", `"another"`).String()))
		}),
		kind("tampered", "claims that were changed after they were signed", auth.BadSignature, func(b base) string {
			good := b.Token()
			return encode(b.header("")) + "." + encode(b.claims().with("jti", `"tampered"`).String()) + good[strings.LastIndexByte(good, '.'):]
		}),
		kind("tampered-header", "a header that was changed after it was signed", auth.BadSignature, func(b base) string {
			good := b.Token()
			return encode(`{"alg":"EdDSA","kid":`+quote(b.Key.ID)+`}`) + good[strings.IndexByte(good, '.'):]
		}),
		forged("wrong-key", "signed by a key that nobody trusts, under the kid of a trusted one", func(b base) document { return b.claims() }),
		forged("wrong-key-expired", "signed by a key that nobody trusts, and expired", func(b base) document { return b.claims().with("iat", "1").with("nbf", "1").with("exp", "1") }),
		forged("wrong-key-audience", "signed by a key that nobody trusts, for another audience", func(b base) document { return b.claims().with("aud", `"another"`) }),
		forged("wrong-key-operator", "signed by a key that nobody trusts, for the operator", base.operators),
		forged("wrong-key-lifetime", "signed by a key that nobody trusts, for a thousand years", func(b base) document {
			return b.claims().with("exp", fmt.Sprint(b.Now.Unix()+1000*365*86400))
		}),
	}
}

// malleated returns the signature with the order of the group added to S, which solves the same equation.
func malleated(signature []byte) []byte {
	s := slices.Clone(signature[32:])
	slices.Reverse(s)
	s = new(big.Int).Add(new(big.Int).SetBytes(s), groupOrder()).FillBytes(make([]byte, 32))
	slices.Reverse(s)
	return append(slices.Clone(signature[:32]), s...)
}

// groupOrder returns the order of Ed25519's group (RFC 8032 section 5.1).
func groupOrder() *big.Int {
	order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
	return order
}

package badtokens

import (
	"encoding/base64"
	"strings"

	"taskapi/auth"
	"taskapi/identity"
)

func forms() []Kind {
	parts := func(b base) (header, claims, signature string) {
		segments := strings.Split(b.Token(), ".")
		return segments[0], segments[1], segments[2]
	}
	good := func(b base) string { return b.Token() }
	form := func(name, wrong string, make func(base) string) Kind { return kind(name, wrong, auth.Malformed, make) }
	return []Kind{
		kind("empty", "there is no token", auth.NoToken, func(base) string { return "" }),
		form("one-segment", "a header alone", func(b base) string { h, _, _ := parts(b); return h }),
		form("two-segments", "no signature, and no dot before it", func(b base) string { h, c, _ := parts(b); return h + "." + c }),
		form("four-segments", "a segment after the signature", func(b base) string { _, _, s := parts(b); return good(b) + "." + s }),
		form("five-segments", "five segments, as an encrypted token (JWE) has", func(b base) string { return good(b) + ".AAAA.AAAA" }),
		form("dots-alone", "three empty segments", func(base) string { return ".." }),
		form("many-dots", "4096 dots (CVE-2025-30204)", func(base) string { return strings.Repeat(".", identity.MaxTokenLength) }),
		kind("over-4096-bytes", "more than 4096 bytes, of which most are blanks between the claims", auth.TooLong, func(b base) string {
			return b.withClaims(text(b.claims().String() + strings.Repeat(" ", identity.MaxTokenLength*3/4)))
		}).strict(),
		kind("claims-of-4-kib", "claims of more than 4 KiB", auth.TooLong, func(b base) string {
			return b.withClaims(b.claims().with("x", quote(strings.Repeat("a", 4096))))
		}).strict(),
		form("header-empty", "an empty header", func(b base) string { _, c, _ := parts(b); return b.sign("." + c) }),
		form("claims-empty", "empty claims", func(b base) string { h, _, _ := parts(b); return b.sign(h + ".") }),
		form("signature-empty", "an empty signature", func(b base) string { h, c, _ := parts(b); return h + "." + c + "." }),
		form("json-serialization", "a JWS in JSON instead of the compact form", func(b base) string {
			h, c, s := parts(b)
			return `{"payload":"` + c + `","protected":"` + h + `","signature":"` + s + `"}`
		}).strict(),
		form("padding-in-header", "base64 with padding in the header", func(b base) string {
			_, c, _ := parts(b)
			return b.sign(base64.URLEncoding.EncodeToString([]byte(b.padded(b.header("")))) + "." + c)
		}),
		form("padding-in-claims", "base64 with padding in the claims", func(b base) string {
			h, _, _ := parts(b)
			return b.sign(h + "." + base64.URLEncoding.EncodeToString([]byte(b.padded(b.claims().String()))))
		}),
		form("padding-in-signature", "base64 with padding in the signature", func(b base) string { return good(b) + "==" }),
		form("standard-base64", "claims in base64 with '+' and '/' instead of '-' and '_'", func(b base) string {
			h, _, _ := parts(b)
			return b.sign(h + "." + base64.RawStdEncoding.EncodeToString([]byte(b.claims().with("x", `"~~~???>>>"`).String())))
		}),
		form("line-feed-in-claims", "a line feed within the claims", func(b base) string { return b.spliced("\n") }),
		form("nul-byte", "a NUL byte within the claims", func(b base) string { return b.spliced("\x00") }),
		form("byte-over-127", "a byte that is no ASCII within the claims", func(b base) string { return b.spliced("\xff") }),
		form("blank-in-claims", "a blank within the claims", func(b base) string { return b.spliced(" ") }),
		form("carriage-return-in-header", "a carriage return within the header", func(b base) string {
			h, c, _ := parts(b)
			return b.sign(h[:8] + "\r" + h[8:] + "." + c)
		}),
		form("line-feed-in-signature", "a line feed within the signature", func(b base) string { t := good(b); return t[:len(t)-4] + "\n" + t[len(t)-4:] }).strict(),
		form("line-feed-after", "a line feed after the token", func(b base) string { return good(b) + "\n" }).strict(),
		form("blank-before", "a blank before the token", func(b base) string { return " " + good(b) }).strict(),
		form("blank-after", "a blank after the token", func(b base) string { return good(b) + " " }).strict(),
		form("bearer-in-token", "the word Bearer within the token", func(b base) string { return "Bearer " + good(b) }),
		form("trailing-bits-in-signature", "bits after the signature's last byte that encode nothing: another text for the same token",
			func(b base) string { return TrailingBits(good(b)) }).strict(),
		form("trailing-bits-in-claims", "bits after the claims' last byte that encode nothing", func(b base) string {
			h, _, _ := parts(b)
			return b.sign(h + "." + TrailingBits(encode(b.padded(b.claims().String()))))
		}).strict(),
		form("lone-character", "a last character that encodes no byte", func(b base) string {
			h, _, _ := parts(b)
			c := b.claims().String()
			return b.sign(h + "." + encode(c+strings.Repeat(" ", (3-len(c)%3)%3)) + "A")
		}),
	}
}

// padded returns JSON with blanks after it, so that its length is 1 modulo 3: base64 then has padding and bits that encode nothing.
func (base) padded(document string) string {
	return document + strings.Repeat(" ", (4-len(document)%3)%3)
}

// spliced returns a token with something within its claims, signed as it is.
func (b base) spliced(what string) string {
	h, c := encode(b.header("")), encode(b.claims().String())
	return b.sign(h + "." + c[:8] + what + c[8:])
}

// TrailingBits returns a segment of base64url, or a token, with the last bit set of its last character, which encodes nothing: the last group
// of characters must be of two or three.
func TrailingBits(segment string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(segment) - 1
	return segment[:last] + string(alphabet[strings.IndexByte(alphabet, segment[last])|1])
}

package badtokens

import (
	"encoding/base64"
	"slices"
	"strings"

	"taskapi/auth"
	"taskapi/identity"
)

func formKinds() []Kind {
	return slices.Concat(kinds(auth.NoToken, []row{
		{"empty", "there is no token", text("")},
	}), kinds(auth.Malformed, []row{
		{"one-segment", "a header alone", text("%h")},
		{"two-segments", "no signature, and no dot before it", text("%h.%c")},
		{"four-segments", "a segment after the signature", text("%h.%c.%s.%s")},
		{"five-segments", "five segments, as an encrypted token (JWE) has", text("%h.%c.%s.AAAA.AAAA")},
		{"dots-alone", "three empty segments", text("..")},
		{"many-dots", "4096 dots (CVE-2025-30204)", text(strings.Repeat(".", identity.MaxTokenLength))},
		{"header-empty", "an empty header", signed(".%c")},
		{"claims-empty", "empty claims", signed("%h.")},
		{"signature-empty", "an empty signature", text("%h.%c.")},
		{"padding-in-header", "base64 with padding in the header", func(b base) string {
			return b.sign(base64.URLEncoding.EncodeToString([]byte(padded(b.header("")))) + b.segments(".%c"))
		}},
		{"padding-in-claims", "base64 with padding in the claims", func(b base) string {
			return b.sign(b.segments("%h.") + base64.URLEncoding.EncodeToString([]byte(padded(b.claims().String()))))
		}},
		{"padding-in-signature", "base64 with padding in the signature", text("%h.%c.%s==")},
		{"standard-base64", "claims in base64 with '+' and '/' instead of '-' and '_'", func(b base) string {
			claims := b.claims().with("x", `"~~~???>>>"`).String()
			return b.sign(b.segments("%h.") + base64.RawStdEncoding.EncodeToString([]byte(claims)))
		}},
		{"line-feed-in-claims", "a line feed within the claims", within("\n")},
		{"nul-byte", "a NUL byte within the claims", within("\x00")},
		{"byte-over-127", "a byte that is no ASCII within the claims", within("\xff")},
		{"blank-in-claims", "a blank within the claims", within(" ")},
		{"carriage-return-in-header", "a carriage return within the header", func(b base) string {
			signed := b.segments("%h.%c")
			return b.sign(signed[:8] + "\r" + signed[8:])
		}},
		{"bearer-in-token", "the word Bearer within the token", text("Bearer %h.%c.%s")},
		{"lone-character", "a last character that encodes no byte", func(b base) string {
			c := b.claims().String()
			return b.sign(b.segments("%h.") + encode(c+strings.Repeat(" ", (3-len(c)%3)%3)) + "A")
		}},
	}), strict(auth.Malformed, []row{
		{"json-serialization", "a JWS in JSON instead of the compact form",
			text(`{"payload":"%c","protected":"%h","signature":"%s"}`)},
		{"line-feed-in-signature", "a line feed within the signature", func(b base) string {
			token := b.Token()
			return token[:len(token)-4] + "\n" + token[len(token)-4:]
		}},
		{"line-feed-after", "a line feed after the token", text("%h.%c.%s\n")},
		{"blank-before", "a blank before the token", text(" %h.%c.%s")},
		{"blank-after", "a blank after the token", text("%h.%c.%s ")},
		{"trailing-bits-in-signature",
			"bits after the signature's last byte that encode nothing: another text for the same token",
			func(b base) string {
				token := b.Token()
				if signature := token[strings.LastIndexByte(token, '.')+1:]; len(signature)%4 == 0 {
					return "" // all bits of its last character encode something
				}
				return TrailingBits(token)
			}},
		{"trailing-bits-in-claims", "bits after the claims' last byte that encode nothing", func(b base) string {
			return b.sign(b.segments("%h.") + TrailingBits(encode(padded(b.claims().String()))))
		}},
	}), strict(auth.TooLong, []row{
		{"over-4096-bytes", "more than 4096 bytes, of which most are blanks between the claims",
			claims("%c" + strings.Repeat(" ", identity.MaxTokenLength*3/4))},
		{"claims-of-4-kib", "claims of more than 4 KiB", claim("x", quote(strings.Repeat("a", 4096)))},
	}))
}

// padded returns JSON followed by blanks, so that its length is 1 modulo 3: base64 then has padding, and bits that
// encode nothing.
func padded(document string) string { return document + strings.Repeat(" ", (4-len(document)%3)%3) }

// within makes a token with an addition inside the text of its claims, signed with it.
func within(what string) maker {
	return func(b base) string {
		c := b.segments("%c")
		return b.sign(b.segments("%h.") + c[:8] + what + c[8:])
	}
}

// TrailingBits returns a segment of base64url, or a token, with the last bit set of its last character. That bit
// encodes nothing if the last group has two or three characters.
func TrailingBits(segment string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(segment) - 1
	return segment[:last] + string(alphabet[strings.IndexByte(alphabet, segment[last])|1])
}

package badtokens

import (
	"fmt"
	"strings"

	"taskapi/auth"
)

func keyIDs() []Kind {
	var kinds []Kind
	for _, k := range []struct{ name, wrong, kid string }{
		{"kid-empty", "an empty kid", ""},
		{"kid-path-traversal", "kid a path to a file whose content is known", "../../../../dev/null"},
		{"kid-path", "kid a path from the root", "/etc/passwd"},
		{"kid-slash", "a slash in the kid", "a/b"},
		{"kid-backslash", "a backslash in the kid", `a\b`},
		{"kid-sql", "SQL in the kid", "x' UNION SELECT 'secret' -- "},
		{"kid-command", "a shell's command in the kid", "x;id"},
		{"kid-substitution", "a shell's substitution in the kid", "$(id)"},
		{"kid-pipe", "a pipe in the kid", "a|b"},
		{"kid-url", "kid a URL", "http://keys.invalid/key"},
		{"kid-colon", "a colon in the kid", "a:b"},
		{"kid-blank", "a blank in the kid", "a b"},
		{"kid-tab", "a tab in the kid", "a\tb"},
		{"kid-line-feed", "a line feed in the kid, for those who log it", "a\nadmin logged in"},
		{"kid-not-ascii", "a kid that is no ASCII", "é"},
		{"kid-direction", "a kid that turns the direction of text", "\u202e"},
		{"kid-percent-nul", "a percent-encoded NUL in the kid", "a%00"},
		{"kid-braces", "a template in the kid", "{{7*7}}"},
		{"kid-of-65-characters", "a kid of 65 characters", strings.Repeat("a", 65)},
		{"kid-of-1000-characters", "a kid of 1000 characters", strings.Repeat("a", 1000)},
	} {
		made := kind(k.name, k.wrong, auth.BadKeyID, func(b base) string { return b.withHeader(headerOf("EdDSA", k.kid, "")) })
		made.Strict = k.kid == "" // some libraries try every key then
		kinds = append(kinds, made)
	}
	for _, k := range []struct{ name, wrong, kid string }{
		{"kid-null", "kid null", "null"},
		{"kid-number", "kid a number", "1"},
		{"kid-array", "kid an array that holds the right one", "[%s]"},
		{"kid-object", "kid an object", "{}"},
		{"kid-nul", "a NUL character in the kid", `"\u0000"`},
		{"kid-lone-surrogate", "half of a character in the kid", `"\ud800"`},
	} {
		made := kind(k.name, k.wrong, auth.BadHeader, func(b base) string {
			kid := k.kid
			if strings.Contains(kid, "%s") {
				kid = fmt.Sprintf(kid, quote(b.Key.ID))
			}
			return b.withHeader(`{"alg":"EdDSA","kid":` + kid + `}`)
		})
		made.Strict = k.kid == "null"
		kinds = append(kinds, made)
	}
	return append(kinds,
		kind("kid-missing", "no kid", auth.BadKeyID, func(b base) string { return b.withHeader(`{"alg":"EdDSA"}`) }).strict(),
		kind("kid-trailing-blank", "a blank after the kid", auth.BadKeyID, func(b base) string { return b.withHeader(headerOf("EdDSA", b.Key.ID+" ", "")) }),
		kind("kid-unknown", "the kid of no key, and a signature by a trusted one", auth.UnknownKey, func(b base) string { return b.withHeader(headerOf("EdDSA", "unknown", "")) }),
		kind("kid-of-64-dots", "a kid of 64 dots", auth.UnknownKey, func(b base) string { return b.withHeader(headerOf("EdDSA", strings.Repeat(".", 64), "")) }),
		kind("kid-prefix", "the kid without its last character", auth.UnknownKey, func(b base) string {
			return b.withHeader(headerOf("EdDSA", b.Key.ID[:len(b.Key.ID)-1]+"_", ""))
		}),
		kind("kid-of-a-stranger", "kid and signature of a key that nobody trusts", auth.UnknownKey, func(b base) string {
			k := stranger("a-stranger")
			other := base{Good{Key: k}}
			return other.token(other.header(""), b.claims().String())
		}),
		Kind{Name: "kid-of-another-key", Wrong: "the kid of another trusted key than the one that has signed it", Reason: auth.BadSignature, make: func(b base) (string, error) {
			if b.OtherKeyID == "" {
				return "", fmt.Errorf("%w: the ID of no other trusted key is known", ErrNotApplicable)
			}
			return b.withHeader(headerOf("EdDSA", b.OtherKeyID, "")), nil
		}},
		Kind{Name: "kid-in-another-case", Wrong: "the kid in capital letters", Reason: auth.UnknownKey, make: func(b base) (string, error) {
			upper := strings.ToUpper(b.Key.ID)
			if upper == b.Key.ID {
				return "", fmt.Errorf("%w: the kid has no small letter", ErrNotApplicable)
			}
			return b.withHeader(headerOf("EdDSA", upper, "")), nil
		}},
	)
}

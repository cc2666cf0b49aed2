package badtokens

import (
	"slices"
	"strings"

	"taskapi/auth"
)

func keyIDKinds() []Kind {
	return slices.Concat(kinds(auth.BadKeyID, []row{
		{"kid-path-traversal", "kid a path to a file whose content is known", kid("../../../../dev/null")},
		{"kid-path", "kid a path from the root", kid("/etc/passwd")},
		{"kid-slash", "a slash in the kid", kid("a/b")},
		{"kid-backslash", "a backslash in the kid", kid(`a\b`)},
		{"kid-sql", "SQL in the kid", kid("x' UNION SELECT 'secret' -- ")},
		{"kid-command", "a shell's command in the kid", kid("x;id")},
		{"kid-substitution", "a shell's substitution in the kid", kid("$(id)")},
		{"kid-pipe", "a pipe in the kid", kid("a|b")},
		{"kid-url", "kid a URL", kid("http://keys.invalid/key")},
		{"kid-colon", "a colon in the kid", kid("a:b")},
		{"kid-blank", "a blank in the kid", kid("a b")},
		{"kid-tab", "a tab in the kid", kid("a\tb")},
		{"kid-line-feed", "a line feed in the kid, for those who log it", kid("a\nadmin logged in")},
		{"kid-not-ascii", "a kid that is no ASCII", kid("é")},
		{"kid-direction", "a kid that turns the direction of text", kid("\u202e")},
		{"kid-percent-nul", "a percent-encoded NUL in the kid", kid("a%00")},
		{"kid-braces", "a template in the kid", kid("{{7*7}}")},
		{"kid-of-65-characters", "a kid of 65 characters", kid(strings.Repeat("a", 65))},
		{"kid-of-1000-characters", "a kid of 1000 characters", kid(strings.Repeat("a", 1000))},
		{"kid-trailing-blank", "a blank after the kid", func(b base) string { return kid(b.Key.ID + " ")(b) }},
	}), strict(auth.BadKeyID, []row{
		{"kid-empty", "an empty kid", kid("")}, // some libraries try every key then
		{"kid-missing", "no kid", header(`{"alg":%a}`)},
	}), kinds(auth.BadHeader, []row{
		{"kid-number", "kid a number", header(`{"alg":%a,"kid":1}`)},
		{"kid-array", "kid an array that holds the right one", header(`{"alg":%a,"kid":[%k]}`)},
		{"kid-object", "kid an object", header(`{"alg":%a,"kid":{}}`)},
		{"kid-nul", "a NUL character in the kid", header(`{"alg":%a,"kid":"\u0000"}`)},
		{"kid-lone-surrogate", "half of a character in the kid", header(`{"alg":%a,"kid":"\ud800"}`)},
	}), strict(auth.BadHeader, []row{
		{"kid-null", "kid null", header(`{"alg":%a,"kid":null}`)},
	}), kinds(auth.UnknownKey, []row{
		{"kid-unknown", "the kid of no key, and a signature by a trusted one", kid("unknown")},
		{"kid-of-64-dots", "a kid of 64 dots", kid(strings.Repeat(".", 64))},
		{"kid-prefix", "the kid without its last character",
			func(b base) string { return kid(b.Key.ID[:len(b.Key.ID)-1] + "_")(b) }},
		{"kid-of-a-stranger", "kid and signature of a key that nobody trusts",
			func(b base) string { return forged(NewKey("a-stranger", b.Key.signer), b.claims()) }},
		{"kid-in-another-case", "the kid in capital letters",
			func(b base) string { return anotherKid(b, strings.ToUpper(b.Key.ID)) }},
	}), kinds(auth.BadSignature, []row{
		{"kid-of-another-key", "the kid of another trusted key than the one that has signed it",
			func(b base) string { return anotherKid(b, b.OtherKeyID) }},
	}))
}

// anotherKid returns a token with another kid, if there is one that differs from the good one.
func anotherKid(b base, id string) string {
	if id == "" || id == b.Key.ID {
		return ""
	}
	return kid(id)(b)
}

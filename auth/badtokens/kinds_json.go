package badtokens

import (
	"fmt"
	"slices"

	"taskapi/auth"
)

// jsonKinds are claims that are not the JSON of one object, or that different readers read differently.
func jsonKinds() []Kind {
	return slices.Concat(kinds(auth.BadClaims, []row{
		{"claims-null", "claims that are null", claims("null")},
		{"claims-array", "claims that are an array", claims("[]")},
		{"claims-number", "claims that are a number", claims("1")},
		{"claims-string", "claims that are a string", claims(`"x"`)},
		{"claims-cut", "claims without their last brace", claims("%C")},
		{"claims-trailing-text", "text after the claims", claims("%cx")},
		{"claims-trailing-comma", "a comma after the last claim", claims("%C,}")},
		{"claims-twice", "the claims twice", claims("%c%c")},
		{"claims-byte-order-mark", "a byte order mark before the claims", claims("\ufeff%c")},
		{"claims-nul-before", "a NUL byte before the claims", claims("\x00%c")},
		{"claims-nul-after", "a NUL byte after the claims", claims("%c\x00")},
		{"claims-comment", "a comment within the claims", claims("%C/**/}")},
		{"claims-name-unquoted", "a name without quotes", claims("%C,x:1}")},
		{"claims-colon-missing", "another character than the colon after a name", claims(`%C,"x"=1}`)},
		{"claims-point-alone", "a number without a digit after its point", extra("1.")},
		{"claims-exponent-empty", "a number without a digit in its exponent", extra("1e")},
		{"claims-string-unfinished", "a string without an end", claims(`%C,"x":"abc`)},
		{"claims-escape-cut", "an escape with two of its four digits", extra(`"\u00zz"`)},
		{"claims-literal-cut", "a literal that is cut", extra("tru")},
		{"claims-nan", "NaN, which is no JSON", extra("NaN")},
		{"claims-infinity", "Infinity, which is no JSON", extra("Infinity")},
		{"claims-leading-zero", "a number with a leading zero", extra("01")},
		{"claims-plus-sign", "a number with a plus sign", extra("+1")},
		{"claims-hexadecimal", "a hexadecimal number", extra("0x1")},
		{"claims-bare-fraction", "a fraction without a digit before its point", extra(".5")},
		{"claims-control-character", "a control character in a string", extra("\"\x01\"")},
		{"claims-line-feed-in-string", "a line feed in a string", extra("\"\n\"")},
		{"claims-bad-escape", "an escape that JSON does not have", extra(`"\x41"`)},
		{"nested-token", "claims that are a token", func(b base) string { return b.withClaims(quote(b.Token())) }},
	}), strict(auth.BadClaims, []row{
		{"claims-huge-number", "a number beyond every float", extra("1e400")},
		{"claims-not-utf8", "a string that is not UTF-8", extra("\"\xff\"")},
		{"claims-overlong-utf8", "a character in more bytes than it needs", extra("\"\xc0\xaf\"")},
		{"claims-utf8-surrogate", "half of a character in UTF-8", extra("\"\xed\xa0\x80\"")},
		{"claims-lone-surrogate", "half of a character as an escape", extra(`"\ud800"`)},
		{"claims-swapped-surrogates", "the halves of a character the wrong way round", extra(`"\udc00\ud800"`)},
		{"claims-nul-in-string", "a NUL character in a string", extra(`"\u0000"`)},
		{"claims-name-twice", "a claim of no meaning twice", claims(`%C,"a":1,"a":1}`)},
		{"claims-name-twice-escaped", "a claim of no meaning twice, once with an escape in its name",
			claims(`%C,"\u0061":1,"a":1}`)},
		{"claims-name-twice-inside", "a name twice within a claim", extra(`{"a":1,"a":2}`)},
		{"claims-name-twice-deep", "a name twice, deep within a claim", extra(`[{"b":{"a":1,"a":2}}]`)},
		{"claims-in-two-cases", "a claim of no meaning in two cases", claims(`%C,"a":1,"A":1}`)},
		{"claims-too-deep", "claims that are nested deeper than 4", extra(`[[[[]]]]`)},
		{"claims-many-names", "more than 128 names", func(b base) string {
			d := b.claims()
			for i := range 130 {
				d[fmt.Sprintf("n%d", i)] = "0"
			}
			return b.withClaims(d.String())
		}},
		{"exp-twice-later", "exp twice, the second a later one", func(b base) string {
			return overridden("exp", b.claims().value("exp"), "exp")(b)
		}},
		{"exp-overridden", "an exp that has passed, and another one after it", overridden("exp", `1`, `exp`)},
		{"exp-overridden-by-case", "an exp that has passed, and EXP after it", overridden("exp", `1`, `EXP`)},
		{"exp-overridden-by-escape", "an exp that has passed, and another after it with an escape in its name",
			overridden("exp", `1`, `\u0065xp`)},
		{"aud-overridden-by-case", "another audience, and the right one as Aud", overridden("aud", `"another"`, `Aud`)},
		{"task-overridden", "another task, and the right one after it", overridden("nomad_task", `"another"`, `nomad_task`)},
		{"task-overridden-by-case", "another task, and the right one in capital letters",
			overridden("nomad_task", `"another"`, `NOMAD_TASK`)},
		{"task-overridden-by-fold", "another task, and the right one with a letter that folds to k",
			overridden("nomad_task", `"another"`, `nomad_tas\u212a`)},
		{"iss-by-fold", "iss with letters that fold to s", claims(`%C,"i\u017f\u017f":"x"}`)},
		{"role-in-another-case", "the operator's role under a name in another case", claims(`%C,"Taskapi_Role":"operator"}`)},
	}))
}

package badtokens

import (
	"fmt"
	"slices"
	"strings"

	"taskapi/auth"
)

// texts are claims that are not the JSON of one object, or that readers read differently.
func texts() []Kind {
	claims := func(name, wrong string, make func(document) text) Kind {
		return kind(name, wrong, auth.BadClaims, func(b base) string { return b.withClaims(make(b.claims())) })
	}
	constant := func(t text) func(document) text { return func(document) text { return t } }
	after := func(more string) func(document) text { return func(d document) text { return text(d.String() + more) } }
	before := func(more string) func(document) text { return func(d document) text { return text(more + d.String()) } }
	// x returns the good claims with one more, whose value may be anything.
	x := func(value string) func(document) text {
		return func(d document) text { return d.plus(`,"x":` + value) }
	}
	plus := func(more string) func(document) text { return func(d document) text { return d.plus(more) } }
	return slices.Concat([]Kind{
		claims("claims-null", "claims that are null", constant("null")),
		claims("claims-array", "claims that are an array", constant("[]")),
		claims("claims-number", "claims that are a number", constant("1")),
		claims("claims-string", "claims that are a string", constant(`"x"`)),
		claims("claims-cut", "claims without their last brace", func(d document) text { return text(strings.TrimSuffix(d.String(), "}")) }),
		claims("claims-trailing-text", "text after the claims", after("x")),
		claims("claims-trailing-comma", "a comma after the last claim", plus(",")),
		claims("claims-twice", "the claims twice", func(d document) text { return text(d.String() + d.String()) }),
		claims("claims-byte-order-mark", "a byte order mark before the claims", before("\ufeff")),
		claims("claims-nul-before", "a NUL byte before the claims", before("\x00")),
		claims("claims-nul-after", "a NUL byte after the claims", after("\x00")),
		claims("claims-comment", "a comment within the claims", plus("/**/")),
		claims("claims-name-unquoted", "a name without quotes", plus(",x:1")),
		claims("claims-colon-missing", "another character than the colon after a name", plus(`,"x"=1`)),
		claims("claims-point-alone", "a number without a digit after its point", x("1.")),
		claims("claims-exponent-empty", "a number without a digit in its exponent", x("1e")),
		claims("claims-string-unfinished", "a string without an end", func(d document) text {
			return text(strings.TrimSuffix(d.plus(`,"x":"abc`).String(), "}"))
		}),
		claims("claims-escape-cut", "an escape with two of its four digits", x(`"\u00zz"`)),
		claims("claims-literal-cut", "a literal that is cut", x("tru")),
		claims("claims-nan", "NaN, which is no JSON", x("NaN")),
		claims("claims-infinity", "Infinity, which is no JSON", x("Infinity")),
		claims("claims-leading-zero", "a number with a leading zero", x("01")),
		claims("claims-plus-sign", "a number with a plus sign", x("+1")),
		claims("claims-hexadecimal", "a hexadecimal number", x("0x1")),
		claims("claims-bare-fraction", "a fraction without a digit before its point", x(".5")),
		claims("claims-control-character", "a control character in a string", x("\"\x01\"")),
		claims("claims-line-feed-in-string", "a line feed in a string", x("\"\n\"")),
		claims("claims-bad-escape", "an escape that JSON does not have", x(`"\x41"`)),
		kind("nested-token", "claims that are a token", auth.BadClaims, func(b base) string { return b.withClaims(text(quote(b.Token()))) }),
	}, strictly(
		claims("claims-huge-number", "a number beyond every float", x("1e400")),
		claims("claims-not-utf8", "a string that is not UTF-8", x("\"\xff\"")),
		claims("claims-overlong-utf8", "a character in more bytes than it needs", x("\"\xc0\xaf\"")),
		claims("claims-utf8-surrogate", "half of a character in UTF-8", x("\"\xed\xa0\x80\"")),
		claims("claims-lone-surrogate", "half of a character as an escape", x(`"\ud800"`)),
		claims("claims-swapped-surrogates", "the halves of a character the wrong way round", x(`"\udc00\ud800"`)),
		claims("claims-nul-in-string", "a NUL character in a string", x(`"\u0000"`)),
		claims("claims-name-twice", "a claim of no meaning twice", plus(`,"a":1,"a":1`)),
		claims("claims-name-twice-escaped", "a claim of no meaning twice, once with an escape in its name", plus(`,"\u0061":1,"a":1`)),
		claims("claims-name-twice-inside", "a name twice within a claim", x(`{"a":1,"a":2}`)),
		claims("claims-name-twice-deep", "a name twice, deep within a claim", x(`[{"b":{"a":1,"a":2}}]`)),
		claims("claims-in-two-cases", "a claim of no meaning in two cases", plus(`,"a":1,"A":1`)),
		claims("claims-too-deep", "claims that are nested deeper than 4", x(`[[[[]]]]`)),
		claims("claims-many-names", "more than 128 names", func(d document) text {
			for i := range 130 {
				d = d.with(fmt.Sprintf("n%d", i), "0")
			}
			return text(d.String())
		}),
		claims("exp-twice-later", "exp twice, the second a later one", func(d document) text { return d.plus(`,"exp":` + d.value("exp")) }),
		claims("exp-overridden", "an exp that has passed, and another one after it", overridden("exp", `1`, `exp`)),
		claims("exp-overridden-by-case", "an exp that has passed, and EXP after it", overridden("exp", `1`, `EXP`)),
		claims("exp-overridden-by-escape", "an exp that has passed, and another after it with an escape in its name", overridden("exp", `1`, `\u0065xp`)),
		claims("aud-overridden-by-case", "another audience, and the right one as Aud", overridden("aud", `"another"`, `Aud`)),
		claims("task-overridden", "another task, and the right one after it", overridden("nomad_task", `"another"`, `nomad_task`)),
		claims("task-overridden-by-case", "another task, and the right one in capital letters", overridden("nomad_task", `"another"`, `NOMAD_TASK`)),
		claims("task-overridden-by-fold", "another task, and the right one with a letter that folds to k", overridden("nomad_task", `"another"`, `nomad_tas\u212a`)),
		claims("iss-by-fold", "iss with letters that fold to s", plus(`,"i\u017f\u017f":"x"`)),
		claims("role-in-another-case", "the operator's role under a name in another case", plus(`,"Taskapi_Role":"operator"`)),
	))
}

// overridden returns a maker of claims with a bad value, followed by the good one under a name that some readers take for the same.
func overridden(name, bad, again string) func(document) text {
	return func(d document) text { return d.with(name, bad).plus(`,"` + again + `":` + d.value(name)) }
}

package badtokens

import (
	"slices"

	"taskapi/auth"
)

func audienceKinds() []Kind {
	return slices.Concat(kinds(auth.BadClaims, []row{
		{"aud-missing", "no aud", without("aud")},
		{"aud-null", "aud null", claim("aud", "null")},
		{"aud-number", "aud a number", claim("aud", "1")},
		{"aud-true", "aud true", claim("aud", "true")},
		{"aud-object", "aud an object with the right name in it", claim("aud", `{"%s":1}`)},
		{"aud-empty", "an empty aud", claim("aud", `""`)},
		{"aud-empty-array", "aud an empty array (CVE-2020-26160)", claim("aud", "[]")},
		{"aud-array-of-empty", "aud an array of an empty name", claim("aud", `[""]`)},
		{"aud-array-of-numbers", "aud an array of numbers", claim("aud", "[1]")},
		{"aud-mixed-number", "the right aud beside a number", claim("aud", `["%s",1]`)},
		{"aud-nested", "the right aud in an array in an array", claim("aud", `[["%s"]]`)},
	}), strict(auth.BadClaims, []row{
		{"aud-mixed-null", "the right aud beside null", claim("aud", `["%s",null]`)},
		{"aud-mixed-empty", "the right aud beside an empty one", claim("aud", `["%s",""]`)},
	}), kinds(auth.WrongAudience, []row{
		{"wrong-audience", "for somebody else", claim("aud", `"another.example"`)},
		{"wrong-audiences", "for two others", claim("aud", `["a.example","b.example"]`)},
		{"aud-prefix", "the beginning of the right aud", claim("aud", `"%p"`)},
		{"aud-longer", "the right aud with a suffix", claim("aud", `"%s.evil.example"`)},
		{"aud-upper-case", "the right aud in capital letters", claim("aud", `"%u"`)},
		{"aud-blank", "the right aud and a blank", claim("aud", `"%s "`)},
		{"aud-joined", "the right aud and another, joined by a comma", claim("aud", `"%s,another.example"`)},
		{"aud-wildcard", "aud *", claim("aud", `"*"`)},
	}))
}

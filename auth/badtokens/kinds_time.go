package badtokens

import (
	"slices"
	"time"

	"taskapi/auth"
	"taskapi/identity"
)

func timeKinds() []Kind {
	return slices.Concat(kinds(auth.BadClaims, []row{
		{"exp-missing", "no exp", without("exp")},
		{"exp-null", "exp null", claim("exp", "null")},
		{"exp-zero", "exp 0", claim("exp", "0")},
		{"exp-minus-zero", "exp -0", claim("exp", "-0")},
		{"exp-negative", "a negative exp", claim("exp", "-1")},
		{"exp-true", "exp true", claim("exp", "true")},
		{"exp-array", "exp an array", claim("exp", "[%d]")},
		{"exp-object", "exp an object", claim("exp", "{}")},
		{"exp-overflow", "an exp beyond 64 bits", claim("exp", "9223372036854775808")},
		{"exp-beyond-unsigned", "the greatest exp of 64 bits without a sign", claim("exp", "18446744073709551615")},
		{"exp-1e400", "an exp beyond every float", claim("exp", "1e400")},
		{"exp-nan", "exp NaN", claim("exp", "NaN")},
		{"nbf-array", "nbf an array", claim("nbf", "[0]")},
		{"iat-array", "iat an array", claim("iat", "[0]")},
		{"nbf-after-exp", "an nbf after exp: it is good at no time", times(3600, 7200, same)},
	}), strict(auth.BadClaims, []row{
		{"exp-string", "exp a string", claim("exp", `"%d"`)},
		{"nbf-string", "nbf a string", claim("nbf", `"0"`)},
		{"iat-string", "iat a string", claim("iat", `"0"`)},
		{"exp-fraction", "an exp with a fraction", claim("exp", "%d.5")},
		{"exp-point-zero", "an exp with a point and a zero", claim("exp", "%d.0")},
		{"exp-exponent", "an exp with an exponent", claim("exp", "%de0")},
		{"exp-1e18", "an exp of 1e18 seconds", claim("exp", "1e18")},
		{"exp-beyond-9999", "an exp after the year 9999", claim("exp", "253402300800")},
		{"nbf-null", "nbf null", claim("nbf", "null")},
		{"nbf-negative", "a negative nbf", claim("nbf", "-5")},
		{"iat-negative", "a negative iat", claim("iat", "-5")},
		{"iat-fraction", "an iat with a fraction", claim("iat", "1.0")},
	}), kinds(auth.Expired, []row{
		{"expired", "expired an hour ago", times(-3600, -7200, -7200)},
		{"exp-before-iat", "expired before it was issued", times(-60, -120, 0)},
		{"exp-one", "expired a second after 1970 began", func(b base) string {
			return b.withClaims(b.claims().with("iat", "1").with("nbf", "1").with("exp", "1").String())
		}},
	}), strict(auth.Expired, []row{
		{"expired-this-second", "it expires in this very second", times(0, -60, -60)},
	}), kinds(auth.NotYetValid, []row{
		{"not-yet", "good in an hour", times(7200, 3600, same)},
	}), strict(auth.NotYetValid, []row{
		{"iat-ahead", "issued in an hour", times(7200, same, 3600)},
	}), strict(auth.BadLifetime, []row{
		{"lifetime", "good for ten years", times(10*int64(identity.DefaultMaxTTL/time.Second), same, same)},
		{"lifetime-until-9999", "good until the year 9999", claim("exp", "253402300799")},
	}))
}

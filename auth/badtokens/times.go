package badtokens

import (
	"fmt"

	"taskapi/auth"
	"taskapi/identity"
)

func times() []Kind {
	var kinds []Kind
	for _, t := range []struct{ name, wrong, claim, value string }{
		{"exp-null", "exp null", "exp", "null"},
		{"exp-zero", "exp 0", "exp", "0"},
		{"exp-minus-zero", "exp -0", "exp", "-0"},
		{"exp-negative", "a negative exp", "exp", "-1"},
		{"exp-true", "exp true", "exp", "true"},
		{"exp-array", "exp an array", "exp", "[%d]"},
		{"exp-object", "exp an object", "exp", "{}"},
		{"exp-overflow", "an exp beyond 64 bits", "exp", "9223372036854775808"},
		{"exp-beyond-unsigned", "the greatest exp of 64 bits without a sign", "exp", "18446744073709551615"},
		{"exp-1e400", "an exp beyond every float", "exp", "1e400"},
		{"exp-nan", "exp NaN", "exp", "NaN"},
		{"nbf-array", "nbf an array", "nbf", "[0]"},
		{"iat-array", "iat an array", "iat", "[0]"},
	} {
		kinds = append(kinds, badTime(t.name, t.wrong, t.claim, t.value))
	}
	for _, t := range []struct{ name, wrong, claim, value string }{
		{"exp-string", "exp a string", "exp", `"%d"`},
		{"nbf-string", "nbf a string", "nbf", `"0"`},
		{"iat-string", "iat a string", "iat", `"0"`},
		{"exp-fraction", "an exp with a fraction", "exp", "%d.5"},
		{"exp-point-zero", "an exp with a point and a zero", "exp", "%d.0"},
		{"exp-exponent", "an exp with an exponent", "exp", "%de0"},
		{"exp-1e18", "an exp of 1e18 seconds", "exp", "1e18"},
		{"exp-beyond-9999", "an exp after the year 9999", "exp", "253402300800"},
		{"nbf-null", "nbf null", "nbf", "null"},
		{"nbf-negative", "a negative nbf", "nbf", "-5"},
		{"iat-negative", "a negative iat", "iat", "-5"},
		{"iat-fraction", "an iat with a fraction", "iat", "1.0"},
	} {
		kinds = append(kinds, badTime(t.name, t.wrong, t.claim, t.value).strict())
	}
	at := func(name, wrong string, reason auth.Reason, change func(d document, now int64) document) Kind {
		return kind(name, wrong, reason, func(b base) string { return b.withClaims(change(b.claims(), b.Now.Unix())) })
	}
	second := func(at int64) string { return fmt.Sprint(at) }
	return append(kinds,
		at("exp-missing", "no exp", auth.BadClaims, func(d document, _ int64) document { return d.without("exp") }),
		at("nbf-after-exp", "an nbf after exp: it is good at no time", auth.BadClaims, func(d document, now int64) document {
			return d.with("exp", second(now+3600)).with("nbf", second(now+7200))
		}),
		at("expired", "expired an hour ago", auth.Expired, func(d document, now int64) document {
			return d.with("iat", second(now-7200)).with("nbf", second(now-7200)).with("exp", second(now-3600))
		}),
		at("expired-this-second", "it expires in this very second", auth.Expired, func(d document, now int64) document {
			return d.with("iat", second(now-60)).with("nbf", second(now-60)).with("exp", second(now))
		}).strict(),
		at("exp-before-iat", "expired before it was issued", auth.Expired, func(d document, now int64) document {
			return d.with("exp", second(now-60)).with("nbf", second(now-120)).with("iat", second(now))
		}),
		at("exp-one", "expired a second after 1970 began", auth.Expired, func(d document, _ int64) document {
			return d.with("iat", "1").with("nbf", "1").with("exp", "1")
		}),
		at("not-yet", "good in an hour", auth.NotYetValid, func(d document, now int64) document {
			return d.with("nbf", second(now+3600)).with("exp", second(now+7200))
		}),
		at("iat-ahead", "issued in an hour", auth.NotYetValid, func(d document, now int64) document {
			return d.with("iat", second(now+3600)).with("exp", second(now+7200))
		}).strict(),
		at("lifetime", "good for ten years", auth.BadLifetime, func(d document, now int64) document {
			return d.with("exp", second(now+10*int64(identity.DefaultMaxTTL.Seconds())))
		}).strict(),
		at("lifetime-until-9999", "good until the year 9999", auth.BadLifetime, func(d document, _ int64) document { return d.with("exp", "253402300799") }).strict(),
	)
}

// badTime returns a kind with a time that is none. %d in its value is the good one.
func badTime(name, wrong, claim, value string) Kind {
	return kind(name, wrong, auth.BadClaims, func(b base) string {
		d := b.claims()
		return b.withClaims(d.with(claim, expand(value, d.value(claim))))
	})
}

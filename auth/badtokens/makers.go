package badtokens

import (
	"strconv"
	"strings"

	"taskapi/identity"
)

// Makers of bad tokens. Their texts are templates. Each maker names the verbs that stand for parts of the good token.

// text makes a token that is the template: %h, %c and %s are the good token's segments, for header, claims and
// signature.
func text(template string) maker {
	return func(b base) string { return b.segments(template) }
}

// signed makes a token whose first two segments are the template, with the signature of that. %h and %c are as in text.
func signed(template string) maker {
	return func(b base) string { return b.sign(b.segments(template)) }
}

func (b base) segments(template string) string {
	parts := strings.Split(b.Token(), ".")
	return strings.NewReplacer("%h", parts[0], "%c", parts[1], "%s", parts[2]).Replace(template)
}

// header makes a token with the template as its header, signed well. %h is the good header and %H is that without its
// last brace; %a and %k are the good alg and kid in quotes.
func header(template string) maker {
	return func(b base) string {
		good := b.header("")
		parts := strings.NewReplacer("%h", good, "%H", good[:len(good)-1], "%k", quote(b.Key.ID),
			"%a", quote(b.Key.Algorithm()))
		return b.withHeader(parts.Replace(template))
	}
}

// member makes a token whose header has one more member.
func member(text string) maker { return header("%H," + text + "}") }

// alg makes a token with another alg and a good signature.
func alg(name string) maker {
	return func(b base) string { return b.withHeader(headerOf(name, b.Key.ID, "")) }
}

// kid makes a token with another kid and a good signature.
func kid(id string) maker { return header(`{"alg":%a,"kid":` + quote(id) + `,"typ":"JWT"}`) }

// claims makes a token with the template as its claims. %c is the good claims and %C is those without their last brace.
func claims(template string) maker {
	return func(b base) string {
		good := b.claims().String()
		return b.withClaims(strings.NewReplacer("%c", good, "%C", good[:len(good)-1]).Replace(template))
	}
}

// extra makes a token with one more claim, whose value may be anything.
func extra(value string) maker { return claims(`%C,"x":` + value + "}") }

// claim makes a token with another value of one claim: see base.value.
func claim(name, template string) maker {
	return func(b base) string {
		value := b.value(name, template)
		if value == "" {
			return ""
		}
		return b.withClaims(b.claims().with(name, value).String())
	}
}

func without(name string) maker {
	return func(b base) string { return b.withClaims(b.claims().without(name).String()) }
}

// overridden makes a token with a bad value of a claim, followed by the good one under a name that some readers take
// for the same.
func overridden(name, bad, again string) maker {
	return func(b base) string {
		bad := strings.TrimSuffix(b.claims().with(name, bad).String(), "}")
		return b.withClaims(bad + `,"` + again + `":` + b.claims().value(name) + "}")
	}
}

// same leaves a time as it is: see times.
const same = -1 << 62

// times makes a token with other times, in seconds after now.
func times(exp, nbf, iat int64) maker {
	return func(b base) string {
		d := b.claims()
		for name, after := range map[string]int64{"iat": iat, "nbf": nbf, "exp": exp} {
			if after != same {
				d[name] = strconv.FormatInt(b.Now.Unix()+after, 10)
			}
		}
		return b.withClaims(d.String())
	}
}

// of makes a token of somebody else: a good one with other claims.
func of(change func(*identity.Claims)) maker {
	return func(b base) string {
		change(&b.Claims)
		return b.Token()
	}
}

// operators makes the operator's token.
func operators(b base) string { return b.withClaims(b.operators().String()) }

// value returns a claim's value by a template. %d is the good value, or the first audience; %s is that without its
// quotes, %p without its last three characters, too, and %u in capital letters. "" means that the good value has no
// small letter.
func (b base) value(name, template string) string {
	good := b.claims().value(name)
	switch {
	case name == "aud":
		good = quote(b.Claims.Audience[0])
	case good == "null": // only iss may be missing
		good = `"https://issuer.example"`
	}
	inner := good
	if strings.HasPrefix(good, `"`) {
		inner = good[1 : len(good)-1]
	}
	upper := strings.ToUpper(inner)
	if strings.Contains(template, "%u") && upper == inner {
		return ""
	}
	return strings.NewReplacer("%d", good, "%s", inner, "%u", upper, "%p", inner[:max(1, len(inner)-3)]).Replace(template)
}

package identitytest

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"taskapi/identity"
)

// BadToken is one way to be wrong.
type BadToken struct {
	Name   string
	Token  string
	Reason identity.Reason
}

// at is an issuer and the time at which its claims are good.
type at struct {
	Issuer
	now time.Time
}

func (f at) good(more string) string { return GoodClaims(f.now, more) }

// BadTokens returns one bad token at least for each class of attack known against JWT libraries. But for those that are about the signature,
// each is signed well by the issuer, and would be good at now: nothing but the named fault is wrong with it.
func BadTokens(issuer Issuer, now time.Time) []BadToken {
	f := at{issuer, now}
	return slices.Concat(badForms(f), badAlgorithms(f), badHeaders(f), badKeyIDs(f), badJSON(f), badTimes(f), badClaims(f), badSignatures(f))
}

func badForms(f at) []BadToken {
	h, c := Base64(f.Header("")), Base64(f.good(""))
	good := f.Sign(h + "." + c)
	signature := strings.Split(good, ".")[2]
	return []BadToken{
		{"empty", "", identity.ReasonMalformed},
		{"one segment", h, identity.ReasonMalformed},
		{"two segments", h + "." + c, identity.ReasonMalformed},
		{"four segments", good + "." + signature, identity.ReasonMalformed},
		{"JWE with five segments", good + ".AAAA.AAAA", identity.ReasonMalformed},
		{"dots alone", "..", identity.ReasonMalformed},
		{"4096 dots (CVE-2025-30204)", strings.Repeat(".", 4096), identity.ReasonMalformed},
		{"a million dots", strings.Repeat(".", 1e6), identity.ReasonTooLong},
		{"4097 bytes", good + strings.Repeat("A", 4097-len(good)), identity.ReasonTooLong},
		{"claims of 4 KiB", f.Token(f.Header(""), f.good(`,"x":"`+strings.Repeat("a", 4096)+`"`)), identity.ReasonTooLong},
		{"empty header", f.Sign("." + c), identity.ReasonMalformed},
		{"empty claims", f.Sign(h + "."), identity.ReasonMalformed},
		{"empty signature", h + "." + c + ".", identity.ReasonMalformed},
		{"JSON serialization", `{"payload":"` + c + `","protected":"` + h + `","signature":"` + signature + `"}`, identity.ReasonMalformed},
		{"padding", f.Sign(base64.URLEncoding.EncodeToString([]byte(f.Header(" "))) + "=." + c), identity.ReasonMalformed},
		{"padded claims", f.Sign(h + "." + c + "=="), identity.ReasonMalformed},
		{"padded signature", good + "==", identity.ReasonMalformed},
		{"standard alphabet", f.Sign(h + "." + base64.RawStdEncoding.EncodeToString([]byte(f.good(`,"x":"~~~???>>>"`)))), identity.ReasonMalformed},
		{"a line feed in the claims", f.Sign(h + "." + c[:8] + "\n" + c[8:]), identity.ReasonMalformed},
		{"a carriage return in the header", f.Sign(h[:8] + "\r" + h[8:] + "." + c), identity.ReasonMalformed},
		{"a line feed in the signature", good[:len(good)-4] + "\n" + good[len(good)-4:], identity.ReasonMalformed},
		{"a line feed after it", good + "\n", identity.ReasonMalformed},
		{"a blank before it", " " + good, identity.ReasonMalformed},
		{"a blank after it", good + " ", identity.ReasonMalformed},
		{"a byte over 0x7f", f.Sign(h + "." + c[:8] + "\xff" + c[8:]), identity.ReasonMalformed},
		{"a NUL byte", f.Sign(h + "." + c[:8] + "\x00" + c[8:]), identity.ReasonMalformed},
		{"trailing bits in the signature", TrailingBits(good), identity.ReasonMalformed},
		{"trailing bits in the claims", f.Sign(h + "." + TrailingBits(Base64(f.good(f.pad(1))))), identity.ReasonMalformed},
		{"a lone character", f.Sign(h + "." + Base64(f.good(f.pad(0))) + "A"), identity.ReasonMalformed},
		{"nested in a Bearer", "Bearer " + good, identity.ReasonMalformed},
	}
}

// pad returns members that make claims of a length that is rest modulo 3.
func (f at) pad(rest int) string {
	for n := 0; ; n++ {
		if more := `,"p":"` + strings.Repeat("a", n) + `"`; len(f.good(more))%3 == rest {
			return more
		}
	}
}

// TrailingBits sets a bit of the last character that encodes nothing. It needs a segment with such bits.
func TrailingBits(segment string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(segment) - 1
	return segment[:last] + string(alphabet[strings.IndexByte(alphabet, segment[last])|1])
}

func badAlgorithms(f at) []BadToken {
	var bad []BadToken
	for _, alg := range []string{
		"none", "None", "NONE", "nOnE", "HS256", "HS512", "RS256", "PS256", "ES256", "ES256K", "Ed25519", "Ed448", "eddsa", "EDDSA", "EdDSA ", "", "dir",
	} {
		header := fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":"JWT"}`, alg, f.ID)
		bad = append(bad,
			BadToken{"alg " + alg, f.Token(header, f.good("")), identity.ReasonAlgorithm},
			BadToken{"alg " + alg + " unsigned", Base64(header) + "." + Base64(f.good("")) + ".", identity.ReasonAlgorithm})
	}
	signed := Base64(`{"alg":"HS256","kid":"`+f.ID+`"}`) + "." + Base64(f.good(""))
	for name, secret := range map[string]string{
		"raw": string(f.Public()), "base64url": Base64(string(f.Public())), "ssh": "ssh-ed25519 " + base64.StdEncoding.EncodeToString(f.Public()),
	} {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(signed))
		bad = append(bad, BadToken{"HS256 with the public key as secret, " + name, signed + "." + Base64(string(mac.Sum(nil))), identity.ReasonAlgorithm})
	}
	return append(bad,
		BadToken{"alg missing", f.Token(`{"kid":"`+f.ID+`"}`, f.good("")), identity.ReasonAlgorithm},
		BadToken{"alg null", f.Token(`{"alg":null,"kid":"`+f.ID+`"}`, f.good("")), identity.ReasonHeader},
		BadToken{"alg array", f.Token(`{"alg":["EdDSA"],"kid":"`+f.ID+`"}`, f.good("")), identity.ReasonHeader},
		BadToken{"alg number", f.Token(`{"alg":0,"kid":"`+f.ID+`"}`, f.good("")), identity.ReasonHeader},
		BadToken{"ALG alone", f.Token(`{"ALG":"EdDSA","kid":"`+f.ID+`"}`, f.good("")), identity.ReasonHeader})
}

func badHeaders(f at) []BadToken {
	var bad []BadToken
	for _, member := range []string{
		`"jwk":` + f.JWK(""), `"jku":"https://evil.example/jwks"`, `"x5u":"https://evil.example/x"`, `"x5c":["AAAA"]`, `"x5t":"AAAA"`, `"x5t#S256":"A"`,
		`"crit":["exp"]`, `"crit":[]`, `"crit":["b64"],"b64":false`, `"b64":false`, `"b64":true`, `"zip":"DEF"`, `"enc":"A256GCM"`, `"cty":"JWT"`,
		`"epk":{}`, `"nonce":"x"`, `"url":"http://x"`, `"unknown":null`, `"KID":"x"`, `"Alg":"none"`, `"":""`,
		`"alg":"none"`, `"alg":"EdDSA"`, `"kid":"other"`, `"typ":"JWT"`, `"\u0061lg":"none"`,
	} {
		bad = append(bad, BadToken{"header with " + member, f.Token(f.Header(","+member), f.good("")), identity.ReasonHeader})
	}
	for _, typ := range []string{`"jwt"`, `"at+jwt"`, `"JWE"`, `"JOSE"`, `""`, `null`, `1`, `["JWT"]`} {
		header := `{"alg":"EdDSA","kid":"` + f.ID + `","typ":` + typ + `}`
		bad = append(bad, BadToken{"typ " + typ, f.Token(header, f.good("")), identity.ReasonHeader})
	}
	for _, header := range []string{
		"null", "[]", `"EdDSA"`, "1", "{", "{}}", f.Header("") + "x", f.Header("") + f.Header(""), "\ufeff" + f.Header(""), f.Header(",\"\xff\":1"),
		f.Header("") + "\x00", f.Header(","), strings.ReplaceAll(f.Header(""), `"`, `'`), "// c\n" + f.Header(""),
	} {
		bad = append(bad, BadToken{fmt.Sprintf("header %q", header), f.Token(header, f.good("")), identity.ReasonHeader})
	}
	return append(bad, BadToken{"empty object", f.Token("{}", f.good("")), identity.ReasonAlgorithm})
}

func badKeyIDs(f at) []BadToken {
	var bad []BadToken
	for _, kid := range []string{
		"", "../../../../dev/null", "/etc/passwd", "a/b", "x' OR '1'='1", "x;id", "$(id)", "a b", "a\tb", "é", "a:b", "a\\b", "a|b", strings.Repeat("a", 65),
		strings.Repeat("a", 1000), "a%00", f.ID + " ", "\u202e", "{}", "http://evil.example",
	} {
		header := fmt.Sprintf(`{"alg":"EdDSA","kid":%s}`, quote(kid))
		bad = append(bad, BadToken{fmt.Sprintf("kid %q", kid), f.Token(header, f.good("")), identity.ReasonKeyID})
	}
	for _, kid := range []string{"null", "1", `["` + f.ID + `"]`, `{}`, `"\u0000"`, `"\ud800"`} {
		bad = append(bad, BadToken{"kid " + kid, f.Token(`{"alg":"EdDSA","kid":`+kid+`}`, f.good("")), identity.ReasonHeader})
	}
	return append(bad,
		BadToken{"kid missing", f.Token(`{"alg":"EdDSA"}`, f.good("")), identity.ReasonKeyID},
		BadToken{"kid unknown", f.Token(`{"alg":"EdDSA","kid":"unknown"}`, f.good("")), identity.ReasonUnknownKey},
		BadToken{"kid in another case", f.Token(`{"alg":"EdDSA","kid":"`+strings.ToUpper(f.ID)+`"}`, f.good("")), identity.ReasonUnknownKey},
		BadToken{"kid of 64 dots", f.Token(`{"alg":"EdDSA","kid":"`+strings.Repeat(".", 64)+`"}`, f.good("")), identity.ReasonUnknownKey})
}

func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(s) + `"`
}

func badJSON(f at) []BadToken {
	var bad []BadToken
	for _, claims := range []string{
		"", "null", "[]", "1", `"x"`, "{", "{]", `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{"a":tru}`, `{"a":nul}`,
		f.good("") + "x", f.good("") + f.good(""), f.good("") + ",", "\ufeff" + f.good(""), "\x00" + f.good(""), f.good("") + "\x00",
		f.good(",\"x\":\"\xff\""), f.good(",\"x\":\"\xc0\xaf\""), f.good(",\"x\":\"\xed\xa0\x80\""), f.good(",\"x\":\"\x01\""), f.good(",\"x\":\"\n\""),
		f.good(`,"x":"\ud800"`), f.good(`,"x":"\udc00\ud800"`), f.good(`,"x":"\ud800\u0041"`), f.good(`,"x":"\u0000"`), f.good(`,"x":"\x41"`),
		f.good(`,"x":"\u12"`), f.good(`,"x":"\u+123"`), f.good(`,"x":"`), f.good(`,"x":01`), f.good(`,"x":+1`), f.good(`,"x":.5`),
		f.good(`,"x":1.`), f.good(`,"x":1e`), f.good(`,"x":-`), f.good(`,"x":0x1`), f.good(`,"x":NaN`), f.good(`,"x":Infinity`),
		f.good(`,"x":1e400`), f.good(`,"x":-1e400`), f.good(`/**/`), f.good(`,"a":1,"a":1`), f.good(`,"a":1,"A":1`),
		f.good(`,"\u0061":1,"a":1`), f.good(`,"exp":99999999999`), f.good(`,"EXP":99999999999`), f.good(`,"Exp":1`), f.good(`,"\u0065xp":1`),
		f.good(`,"i\u017f\u017f":"x"`), f.good(`,"nomad_ta\u017fk":"x"`), f.good(`,"nomad_tas\u212a":"x"`), f.good(`,"NOMAD_TASK":"x"`),
		f.good(`,"Taskapi_Role":"operator"`), f.good(`,"x":{"a":1,"a":2}`), f.good(`,"x":{"a":1,"A":2}`), f.good(`,"x":[{"b":{"a":1,"a":2}}]`),
		f.good(`,"x":[[[[]]]]`), f.good(`,"x":{"x":{"x":{"x":{}}}}`), f.good(`,"x":` + strings.Repeat("[", 1000)),
		f.good(ManyNames(65)), f.good(`,"x":[` + strings.Repeat(`{"a":1},`, 130) + `1]`),
	} {
		reason := identity.ReasonClaims
		if claims == "" {
			reason = identity.ReasonMalformed
		}
		bad = append(bad, BadToken{fmt.Sprintf("claims %.120q", claims), f.Token(f.Header(""), claims), reason})
	}
	return bad
}

func ManyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"n%d":0`, i)
	}
	return b.String()
}

func badTimes(f at) []BadToken {
	var bad []BadToken
	for _, exp := range []string{
		"null", "0", "-1", "-0", `"1795000000"`, "true", "1e18", "1e400", "1.5", "1795262400.0", "1.795e9", "9223372036854775808", "1000000000000000000",
		"253402300800", "NaN", "[1795262400]", "{}", "0x7fffffff", "18446744073709551615", "--1",
	} {
		bad = append(bad, BadToken{"exp " + exp, f.Token(f.Header(""), WithExp(exp)), identity.ReasonClaims})
	}
	now := f.now.Unix()
	for _, c := range []struct {
		name   string
		claims string
		reason identity.Reason
	}{
		{"exp missing", `{"aud":"nomadproject.io"}`, identity.ReasonClaims},
		{"nbf after exp", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"nbf":%d}`, now+10, now+11), identity.ReasonClaims},
		{"nbf a string", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"nbf":"0"}`, now+10), identity.ReasonClaims},
		{"nbf null", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"nbf":null}`, now+10), identity.ReasonClaims},
		{"nbf negative", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"nbf":-5}`, now+10), identity.ReasonClaims},
		{"iat negative", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"iat":-5}`, now+10), identity.ReasonClaims},
		{"iat a float", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"iat":1.0}`, now+10), identity.ReasonClaims},
		{"expired this second", WithExp(fmt.Sprint(now)), identity.ReasonExpired},
		{"expired long ago", WithExp("1"), identity.ReasonExpired},
		{"nbf ahead", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"nbf":%d}`, now+10, now+3), identity.ReasonNotYetValid},
		{"iat ahead", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"iat":%d}`, now+10, now+3), identity.ReasonNotYetValid},
		{"longer than allowed", WithExp(fmt.Sprint(now + int64(identity.DefaultMaxTTL/time.Second) + 3)), identity.ReasonLifetime},
		{"exp in the year 9999", WithExp("253402300799"), identity.ReasonLifetime},
	} {
		bad = append(bad, BadToken{c.name, f.Token(f.Header(""), c.claims), c.reason})
	}
	return bad
}

func badClaims(f at) []BadToken {
	var bad []BadToken
	for _, aud := range []string{
		"null", "1", "true", "{}", `{"nomadproject.io":1}`, "[]", `[1]`, `["nomadproject.io",1]`, `["nomadproject.io",null]`, `[["nomadproject.io"]]`, `""`, `[""]`,
		`["nomadproject.io",""]`,
	} {
		bad = append(bad, BadToken{"aud " + aud, f.Token(f.Header(""), WithAud(f.now, aud)), identity.ReasonClaims})
	}
	for _, aud := range []string{
		`"nomadproject"`, `"nomadproject.io.evil.example"`, `"NOMADPROJECT.IO"`, `"nomadproject.io "`, `["a","b"]`, `"nomadproject.io,vault.io"`, `"*"`,
	} {
		bad = append(bad, BadToken{"aud " + aud, f.Token(f.Header(""), WithAud(f.now, aud)), identity.ReasonAudience})
	}
	exp := fmt.Sprint(f.now.Unix() + 60)
	bad = append(bad, BadToken{"aud missing", f.Token(f.Header(""), `{"exp":`+exp+`}`), identity.ReasonClaims})
	for _, member := range []string{
		`"iss":["https://good.example"]`, `"iss":1`, `"iss":null`, `"nomad_task":1`, `"nomad_allocation_id":["x"]`, `"nomad_job_id":{}`,
		`"nomad_namespace":null`, `"taskapi_role":""`, `"taskapi_role":"admin"`, `"taskapi_role":"Operator"`, `"taskapi_role":["operator"]`,
		`"taskapi_role":true`, `"taskapi_role":"operator","nomad_task":"server"`,
	} {
		bad = append(bad, BadToken{"claims with " + member, f.Token(f.Header(""), WithAud(f.now, `"nomadproject.io",`+member)), identity.ReasonClaims})
	}
	for _, member := range []string{`"jti":1`, `"sub":null`} {
		claims := `{"aud":"nomadproject.io","exp":` + exp + `,` + member + `}`
		bad = append(bad, BadToken{"claims with " + member, f.Token(f.Header(""), claims), identity.ReasonClaims})
	}
	return append(bad,
		BadToken{"another issuer's operator", f.Token(f.Header(""), f.good(`,"taskapi_role":"operator"`)), identity.ReasonRole},
		BadToken{"a token as claims", f.Token(f.Header(""), `"`+f.Token(f.Header(""), f.good(""))+`"`), identity.ReasonClaims})
}

func badSignatures(f at) []BadToken {
	signed := Base64(f.Header("")) + "." + Base64(f.good(""))
	good := ed25519.Sign(f.key, []byte(signed))
	with := func(signature []byte) string { return signed + "." + Base64(string(signature)) }
	flipped := slices.Clone(good)
	flipped[10] ^= 1
	bad := []BadToken{
		{"63 bytes", with(good[:63]), identity.ReasonMalformed},
		{"65 bytes", with(append(slices.Clone(good), 0)), identity.ReasonMalformed},
		{"4 KiB", with(make([]byte, 2800)), identity.ReasonMalformed},
		{"all zero", with(make([]byte, 64)), identity.ReasonSignature},
		{"all ones", with(slices.Repeat([]byte{0xff}, 64)), identity.ReasonSignature},
		{"a bit flipped", with(flipped), identity.ReasonSignature},
		{"S plus the order", with(malleated(good)), identity.ReasonSignature},
		{"of another key", NewIssuer(f.ID, 'z').Token(f.Header(""), f.good("")), identity.ReasonSignature},
		{"of other claims", signed + "." + strings.Split(f.Token(f.Header(""), f.good(" ")), ".")[2], identity.ReasonSignature},
		{"of the claims alone", with(ed25519.Sign(f.key, []byte(Base64(f.good(""))))), identity.ReasonSignature},
	}
	// A bad signature hides nothing: the reason shows no claim to a caller without a key (CVE-2024-51744).
	stranger := NewIssuer(f.ID, 'z')
	for _, claims := range []string{WithExp("1"), WithAud(f.now, `"other"`), WithExp("253402300799"), f.good(`,"taskapi_role":"operator"`)} {
		bad = append(bad, BadToken{"bad, and claims " + claims, stranger.Token(stranger.Header(""), claims), identity.ReasonSignature})
	}
	return bad
}

// malleated returns the signature with the order of the group added to S, which solves the same equation (RFC 8032 section 8.4).
func malleated(signature []byte) []byte {
	order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
	s := slices.Clone(signature[32:])
	slices.Reverse(s)
	s = new(big.Int).Add(new(big.Int).SetBytes(s), order).FillBytes(make([]byte, 32))
	slices.Reverse(s)
	return append(slices.Clone(signature[:32]), s...)
}

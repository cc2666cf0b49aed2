package identity_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"taskapi/identity"
)

// badToken is one way to be wrong.
type badToken struct {
	name   string
	token  string
	reason identity.Reason
}

// badTokens returns one bad token at least for each class of attack known against JWT libraries. But for those that are about
// the signature, each is signed well by a trusted key: nothing but the named fault is wrong with it.
func badTokens(f forger) []badToken {
	return slices.Concat(badForms(f), badAlgorithms(f), badHeaders(f), badKeyIDs(f), badJSON(f), badTimes(f), badClaims(f), badSignatures(f))
}

func badForms(f forger) []badToken {
	h, c := b64(f.header("")), b64(goodClaims(""))
	good := f.sign(h + "." + c)
	signature := strings.Split(good, ".")[2]
	return []badToken{
		{"empty", "", identity.ReasonMalformed},
		{"one segment", h, identity.ReasonMalformed},
		{"two segments", h + "." + c, identity.ReasonMalformed},
		{"four segments", good + "." + signature, identity.ReasonMalformed},
		{"JWE with five segments", good + ".AAAA.AAAA", identity.ReasonMalformed},
		{"dots alone", "..", identity.ReasonMalformed},
		{"4096 dots (CVE-2025-30204)", strings.Repeat(".", 4096), identity.ReasonMalformed},
		{"a million dots", strings.Repeat(".", 1e6), identity.ReasonTooLong},
		{"4097 bytes", good + strings.Repeat("A", 4097-len(good)), identity.ReasonTooLong},
		{"claims of 4 KiB", f.token(f.header(""), goodClaims(`,"x":"`+strings.Repeat("a", 4096)+`"`)), identity.ReasonTooLong},
		{"empty header", f.sign("." + c), identity.ReasonMalformed},
		{"empty claims", f.sign(h + "."), identity.ReasonMalformed},
		{"empty signature", h + "." + c + ".", identity.ReasonMalformed},
		{"JSON serialization", `{"payload":"` + c + `","protected":"` + h + `","signature":"` + signature + `"}`, identity.ReasonMalformed},
		{"padding", f.sign(base64.URLEncoding.EncodeToString([]byte(f.header(" "))) + "=." + c), identity.ReasonMalformed},
		{"padded claims", f.sign(h + "." + c + "=="), identity.ReasonMalformed},
		{"padded signature", good + "==", identity.ReasonMalformed},
		{"standard alphabet", f.sign(h + "." + base64.RawStdEncoding.EncodeToString([]byte(goodClaims(`,"x":"~~~???>>>"`)))), identity.ReasonMalformed},
		{"a line feed in the claims", f.sign(h + "." + c[:8] + "\n" + c[8:]), identity.ReasonMalformed},
		{"a carriage return in the header", f.sign(h[:8] + "\r" + h[8:] + "." + c), identity.ReasonMalformed},
		{"a line feed in the signature", good[:len(good)-4] + "\n" + good[len(good)-4:], identity.ReasonMalformed},
		{"a line feed after it", good + "\n", identity.ReasonMalformed},
		{"a blank before it", " " + good, identity.ReasonMalformed},
		{"a blank after it", good + " ", identity.ReasonMalformed},
		{"a byte over 0x7f", f.sign(h + "." + c[:8] + "\xff" + c[8:]), identity.ReasonMalformed},
		{"a NUL byte", f.sign(h + "." + c[:8] + "\x00" + c[8:]), identity.ReasonMalformed},
		{"trailing bits in the signature", trailingBits(good), identity.ReasonMalformed},
		{"trailing bits in the claims", f.sign(h + "." + trailingBits(b64(goodClaims(pad(1))))), identity.ReasonMalformed},
		{"a lone character", f.sign(h + "." + b64(goodClaims(pad(0))) + "A"), identity.ReasonMalformed},
		{"nested in a Bearer", "Bearer " + good, identity.ReasonMalformed},
	}
}

// pad returns members that make goodClaims of a length that is rest modulo 3.
func pad(rest int) string {
	for n := 0; ; n++ {
		if more := `,"p":"` + strings.Repeat("a", n) + `"`; len(goodClaims(more))%3 == rest {
			return more
		}
	}
}

// trailingBits sets a bit of the last character that encodes nothing. It needs a segment with such bits.
func trailingBits(segment string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(segment) - 1
	return segment[:last] + string(alphabet[strings.IndexByte(alphabet, segment[last])|1])
}

func badAlgorithms(f forger) []badToken {
	var bad []badToken
	for _, alg := range []string{
		"none", "None", "NONE", "nOnE", "HS256", "HS512", "RS256", "PS256", "ES256", "ES256K", "Ed25519", "Ed448", "eddsa", "EDDSA", "EdDSA ", "", "dir",
	} {
		header := fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":"JWT"}`, alg, f.id)
		bad = append(bad,
			badToken{"alg " + alg, f.token(header, goodClaims("")), identity.ReasonAlgorithm},
			badToken{"alg " + alg + " unsigned", b64(header) + "." + b64(goodClaims("")) + ".", identity.ReasonAlgorithm})
	}
	signed := b64(`{"alg":"HS256","kid":"`+f.id+`"}`) + "." + b64(goodClaims(""))
	for name, secret := range map[string]string{
		"raw": string(f.public()), "base64url": b64(string(f.public())), "ssh": "ssh-ed25519 " + base64.StdEncoding.EncodeToString(f.public()),
	} {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(signed))
		bad = append(bad, badToken{"HS256 with the public key as secret, " + name, signed + "." + b64(string(mac.Sum(nil))), identity.ReasonAlgorithm})
	}
	return append(bad,
		badToken{"alg missing", f.token(`{"kid":"`+f.id+`"}`, goodClaims("")), identity.ReasonAlgorithm},
		badToken{"alg null", f.token(`{"alg":null,"kid":"`+f.id+`"}`, goodClaims("")), identity.ReasonHeader},
		badToken{"alg array", f.token(`{"alg":["EdDSA"],"kid":"`+f.id+`"}`, goodClaims("")), identity.ReasonHeader},
		badToken{"alg number", f.token(`{"alg":0,"kid":"`+f.id+`"}`, goodClaims("")), identity.ReasonHeader},
		badToken{"ALG alone", f.token(`{"ALG":"EdDSA","kid":"`+f.id+`"}`, goodClaims("")), identity.ReasonHeader})
}

func badHeaders(f forger) []badToken {
	var bad []badToken
	for _, member := range []string{
		`"jwk":` + f.jwk(""), `"jku":"https://evil.example/jwks"`, `"x5u":"https://evil.example/x"`, `"x5c":["AAAA"]`, `"x5t":"AAAA"`, `"x5t#S256":"A"`,
		`"crit":["exp"]`, `"crit":[]`, `"crit":["b64"],"b64":false`, `"b64":false`, `"b64":true`, `"zip":"DEF"`, `"enc":"A256GCM"`, `"cty":"JWT"`,
		`"epk":{}`, `"nonce":"x"`, `"url":"http://x"`, `"unknown":null`, `"KID":"x"`, `"Alg":"none"`, `"":""`,
		`"alg":"none"`, `"alg":"EdDSA"`, `"kid":"other"`, `"typ":"JWT"`, `"\u0061lg":"none"`,
	} {
		bad = append(bad, badToken{"header with " + member, f.token(f.header(","+member), goodClaims("")), identity.ReasonHeader})
	}
	for _, typ := range []string{`"jwt"`, `"at+jwt"`, `"JWE"`, `"JOSE"`, `""`, `null`, `1`, `["JWT"]`} {
		header := `{"alg":"EdDSA","kid":"` + f.id + `","typ":` + typ + `}`
		bad = append(bad, badToken{"typ " + typ, f.token(header, goodClaims("")), identity.ReasonHeader})
	}
	for _, header := range []string{
		"null", "[]", `"EdDSA"`, "1", "{", "{}}", f.header("") + "x", f.header("") + f.header(""), "\ufeff" + f.header(""), f.header(",\"\xff\":1"),
		f.header("") + "\x00", f.header(","), strings.ReplaceAll(f.header(""), `"`, `'`), "// c\n" + f.header(""),
	} {
		bad = append(bad, badToken{fmt.Sprintf("header %q", header), f.token(header, goodClaims("")), identity.ReasonHeader})
	}
	return append(bad, badToken{"empty object", f.token("{}", goodClaims("")), identity.ReasonAlgorithm})
}

func badKeyIDs(f forger) []badToken {
	var bad []badToken
	for _, kid := range []string{
		"", "../../../../dev/null", "/etc/passwd", "a/b", "x' OR '1'='1", "x;id", "$(id)", "a b", "a\tb", "é", "a:b", "a\\b", "a|b", strings.Repeat("a", 65),
		strings.Repeat("a", 1000), "a%00", f.id + " ", "\u202e", "{}", "http://evil.example",
	} {
		header := fmt.Sprintf(`{"alg":"EdDSA","kid":%s}`, quote(kid))
		bad = append(bad, badToken{fmt.Sprintf("kid %q", kid), f.token(header, goodClaims("")), identity.ReasonKeyID})
	}
	for _, kid := range []string{"null", "1", `["` + f.id + `"]`, `{}`, `"\u0000"`, `"\ud800"`} {
		bad = append(bad, badToken{"kid " + kid, f.token(`{"alg":"EdDSA","kid":`+kid+`}`, goodClaims("")), identity.ReasonHeader})
	}
	return append(bad,
		badToken{"kid missing", f.token(`{"alg":"EdDSA"}`, goodClaims("")), identity.ReasonKeyID},
		badToken{"kid unknown", f.token(`{"alg":"EdDSA","kid":"unknown"}`, goodClaims("")), identity.ReasonUnknownKey},
		badToken{"kid in another case", f.token(`{"alg":"EdDSA","kid":"`+strings.ToUpper(f.id)+`"}`, goodClaims("")), identity.ReasonUnknownKey},
		badToken{"kid of 64 dots", f.token(`{"alg":"EdDSA","kid":"`+strings.Repeat(".", 64)+`"}`, goodClaims("")), identity.ReasonUnknownKey})
}

func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(s) + `"`
}

func badJSON(f forger) []badToken {
	var bad []badToken
	for _, claims := range []string{
		"", "null", "[]", "1", `"x"`, "{", "{]", `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{"a":tru}`, `{"a":nul}`,
		goodClaims("") + "x", goodClaims("") + goodClaims(""), goodClaims("") + ",", "\ufeff" + goodClaims(""), "\x00" + goodClaims(""), goodClaims("") + "\x00",
		goodClaims(",\"x\":\"\xff\""), goodClaims(",\"x\":\"\xc0\xaf\""), goodClaims(",\"x\":\"\xed\xa0\x80\""), goodClaims(",\"x\":\"\x01\""), goodClaims(",\"x\":\"\n\""),
		goodClaims(`,"x":"\ud800"`), goodClaims(`,"x":"\udc00\ud800"`), goodClaims(`,"x":"\ud800\u0041"`), goodClaims(`,"x":"\u0000"`), goodClaims(`,"x":"\x41"`),
		goodClaims(`,"x":"\u12"`), goodClaims(`,"x":"\u+123"`), goodClaims(`,"x":"`), goodClaims(`,"x":01`), goodClaims(`,"x":+1`), goodClaims(`,"x":.5`),
		goodClaims(`,"x":1.`), goodClaims(`,"x":1e`), goodClaims(`,"x":-`), goodClaims(`,"x":0x1`), goodClaims(`,"x":NaN`), goodClaims(`,"x":Infinity`),
		goodClaims(`,"x":1e400`), goodClaims(`,"x":-1e400`), goodClaims(`/**/`), goodClaims(`,"a":1,"a":1`), goodClaims(`,"a":1,"A":1`),
		goodClaims(`,"\u0061":1,"a":1`), goodClaims(`,"exp":99999999999`), goodClaims(`,"EXP":99999999999`), goodClaims(`,"Exp":1`), goodClaims(`,"\u0065xp":1`),
		goodClaims(`,"i\u017f\u017f":"x"`), goodClaims(`,"nomad_ta\u017fk":"x"`), goodClaims(`,"nomad_tas\u212a":"x"`), goodClaims(`,"NOMAD_TASK":"x"`),
		goodClaims(`,"Taskapi_Role":"operator"`), goodClaims(`,"x":{"a":1,"a":2}`), goodClaims(`,"x":{"a":1,"A":2}`), goodClaims(`,"x":[{"b":{"a":1,"a":2}}]`),
		goodClaims(`,"x":[[[[]]]]`), goodClaims(`,"x":{"x":{"x":{"x":{}}}}`), goodClaims(`,"x":` + strings.Repeat("[", 1000)),
		goodClaims(manyNames(65)), goodClaims(`,"x":[` + strings.Repeat(`{"a":1},`, 130) + `1]`),
	} {
		reason := identity.ReasonClaims
		if claims == "" {
			reason = identity.ReasonMalformed
		}
		bad = append(bad, badToken{fmt.Sprintf("claims %.120q", claims), f.token(f.header(""), claims), reason})
	}
	return bad
}

func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"n%d":0`, i)
	}
	return b.String()
}

func badTimes(f forger) []badToken {
	var bad []badToken
	for _, exp := range []string{
		"null", "0", "-1", "-0", `"1795000000"`, "true", "1e18", "1e400", "1.5", "1795262400.0", "1.795e9", "9223372036854775808", "1000000000000000000",
		"253402300800", "NaN", "[1795262400]", "{}", "0x7fffffff", "18446744073709551615", "--1",
	} {
		bad = append(bad, badToken{"exp " + exp, f.token(f.header(""), withExp(exp)), identity.ReasonClaims})
	}
	now := epoch.Unix()
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
		{"expired this second", withExp(fmt.Sprint(now)), identity.ReasonExpired},
		{"expired long ago", withExp("1"), identity.ReasonExpired},
		{"nbf ahead", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"nbf":%d}`, now+10, now+3), identity.ReasonNotYetValid},
		{"iat ahead", fmt.Sprintf(`{"aud":"nomadproject.io","exp":%d,"iat":%d}`, now+10, now+3), identity.ReasonNotYetValid},
		{"longer than allowed", withExp(fmt.Sprint(now + int64(identity.DefaultMaxTTL/time.Second) + 3)), identity.ReasonLifetime},
		{"exp in the year 9999", withExp("253402300799"), identity.ReasonLifetime},
	} {
		bad = append(bad, badToken{c.name, f.token(f.header(""), c.claims), c.reason})
	}
	return bad
}

func badClaims(f forger) []badToken {
	var bad []badToken
	for _, aud := range []string{
		"null", "1", "true", "{}", `{"nomadproject.io":1}`, "[]", `[1]`, `["nomadproject.io",1]`, `["nomadproject.io",null]`, `[["nomadproject.io"]]`, `""`, `[""]`,
		`["nomadproject.io",""]`,
	} {
		bad = append(bad, badToken{"aud " + aud, f.token(f.header(""), withAud(aud)), identity.ReasonClaims})
	}
	for _, aud := range []string{
		`"nomadproject"`, `"nomadproject.io.evil.example"`, `"NOMADPROJECT.IO"`, `"nomadproject.io "`, `["a","b"]`, `"nomadproject.io,vault.io"`, `"*"`,
	} {
		bad = append(bad, badToken{"aud " + aud, f.token(f.header(""), withAud(aud)), identity.ReasonAudience})
	}
	exp := fmt.Sprint(epoch.Unix() + 60)
	bad = append(bad, badToken{"aud missing", f.token(f.header(""), `{"exp":`+exp+`}`), identity.ReasonClaims})
	for _, member := range []string{
		`"iss":["https://good.example"]`, `"iss":1`, `"iss":null`, `"nomad_task":1`, `"nomad_allocation_id":["x"]`, `"nomad_job_id":{}`,
		`"nomad_namespace":null`, `"taskapi_role":""`, `"taskapi_role":"admin"`, `"taskapi_role":"Operator"`, `"taskapi_role":["operator"]`,
		`"taskapi_role":true`, `"taskapi_role":"operator","nomad_task":"server"`,
	} {
		bad = append(bad, badToken{"claims with " + member, f.token(f.header(""), withAud(`"nomadproject.io",`+member)), identity.ReasonClaims})
	}
	for _, member := range []string{`"jti":1`, `"sub":null`} {
		claims := `{"aud":"nomadproject.io","exp":` + exp + `,` + member + `}`
		bad = append(bad, badToken{"claims with " + member, f.token(f.header(""), claims), identity.ReasonClaims})
	}
	return append(bad,
		badToken{"another issuer's operator", f.token(f.header(""), goodClaims(`,"taskapi_role":"operator"`)), identity.ReasonRole},
		badToken{"a token as claims", f.token(f.header(""), `"`+f.token(f.header(""), goodClaims(""))+`"`), identity.ReasonClaims})
}

func badSignatures(f forger) []badToken {
	signed := b64(f.header("")) + "." + b64(goodClaims(""))
	good := ed25519.Sign(f.key, []byte(signed))
	with := func(signature []byte) string { return signed + "." + b64(string(signature)) }
	flipped := slices.Clone(good)
	flipped[10] ^= 1
	bad := []badToken{
		{"63 bytes", with(good[:63]), identity.ReasonMalformed},
		{"65 bytes", with(append(slices.Clone(good), 0)), identity.ReasonMalformed},
		{"4 KiB", with(make([]byte, 2800)), identity.ReasonMalformed},
		{"all zero", with(make([]byte, 64)), identity.ReasonSignature},
		{"all ones", with(slices.Repeat([]byte{0xff}, 64)), identity.ReasonSignature},
		{"a bit flipped", with(flipped), identity.ReasonSignature},
		{"S plus the order", with(malleated(good)), identity.ReasonSignature},
		{"of another key", newForger(f.id, 'z').token(f.header(""), goodClaims("")), identity.ReasonSignature},
		{"of other claims", signed + "." + strings.Split(f.token(f.header(""), goodClaims(" ")), ".")[2], identity.ReasonSignature},
		{"of the claims alone", with(ed25519.Sign(f.key, []byte(b64(goodClaims(""))))), identity.ReasonSignature},
	}
	// A bad signature hides nothing: the reason shows no claim to a caller without a key (CVE-2024-51744).
	stranger := newForger(f.id, 'z')
	for _, claims := range []string{withExp("1"), withAud(`"other"`), withExp("253402300799"), goodClaims(`,"taskapi_role":"operator"`)} {
		bad = append(bad, badToken{"bad, and claims " + claims, stranger.token(stranger.header(""), claims), identity.ReasonSignature})
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

func TestBadTokens(t *testing.T) {
	f := newForger("forger-1", 'f')
	v := newVerifier(t, identity.VerifierConfig{Local: openKeyring(t), Foreign: []identity.Issuer{{Keys: f.keySet(t)}}})
	if _, err := v.Verify(f.token(f.header(""), goodClaims("")), epoch); err != nil {
		t.Fatal("the good token that the bad ones are made of:", err)
	}
	tokens := badTokens(f)
	if len(tokens) < 73 {
		t.Fatalf("%d bad tokens, want at least the 73 that golang-jwt was measured with", len(tokens))
	}
	met := map[identity.Reason]bool{}
	for _, bad := range tokens {
		t.Run(bad.name, func(t *testing.T) {
			verified, err := v.Verify(bad.token, epoch)
			reason, ok := identity.ReasonOf(err)
			if !ok || reason != bad.reason || verified != nil {
				t.Fatalf("got %+v and %v, want reason %s", verified, err, bad.reason)
			}
			met[reason] = true
			if _, err := identity.Check(bad.token); (err != nil) != structural(reason) {
				t.Errorf("Check: %v, want an error exactly for a structural reason, and this is %s", err, reason)
			}
			for segment := range strings.SplitSeq(bad.token, ".") {
				if len(segment) > 8 && strings.Contains(err.Error(), segment[:8]) {
					t.Errorf("error %q quotes the token", err)
				}
			}
		})
	}
	for _, reason := range everyReason(t) {
		if !met[reason] && reason != identity.ReasonIssuer { // which takes another configuration: TestIssuers
			t.Errorf("no bad token for reason %s", reason)
		}
	}
}

// everyReason reads the constants in the source: a list in a test would go on without those that are added.
func everyReason(t *testing.T) []identity.Reason {
	t.Helper()
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	var all []identity.Reason
	for _, constant := range regexp.MustCompile(`(?m)^\tReason\w+ +Reason = "(\w+)"`).FindAllSubmatch(source, -1) {
		reason := identity.Reason(constant[1])
		if slices.Contains(all, reason) {
			t.Errorf("two reasons are called %s", reason)
		}
		all = append(all, reason)
	}
	if len(all) < 14 {
		t.Fatalf("found the reasons %q", all)
	}
	return all
}

// structural reports whether a token's form alone is enough for the reason.
func structural(r identity.Reason) bool {
	switch r {
	case identity.ReasonTooLong, identity.ReasonMalformed, identity.ReasonHeader, identity.ReasonAlgorithm, identity.ReasonKeyID, identity.ReasonClaims:
		return true
	}
	return false
}

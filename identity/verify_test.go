package identity_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

// asNomad are the claims of a default identity as a Nomad 1.10 server signs them with an EdDSA key.
var asNomad = fmt.Sprintf(
	`{"aud":"nomadproject.io","exp":%d,"extra_claims":{"nomad_workload_id":"global:default:web"},"iat":%d,`+
		`"iss":"https://nomad.example","jti":"6a3f0c5e-93f7-1f5a-0b5c-0e5d3c0a7b11","nbf":%[2]d,`+
		`"nomad_allocation_id":"5d2b1f0e-0000-4000-8000-000000000002","nomad_job_id":"web",`+
		`"nomad_namespace":"default","nomad_node":{"id":"n1","pools":["default"]},"nomad_task":"server",`+
		`"sub":"global:default:web:app:server:default"}`,
	epoch.Unix()+3600, epoch.Unix())

func TestGoodTokens(t *testing.T) {
	f := newIssuer("6e1f.A_b-9", 'f')
	v := newVerifier(t, identity.VerifierConfig{Local: identitytest.Keyring(t),
		Foreign: []identity.Issuer{{Keys: f.KeySet(t)}}, Audiences: []string{"vault.io", "nomadproject.io"}})
	longest := epoch.Unix() + int64(identity.DefaultMaxTTL/time.Second)
	for name, token := range map[string]string{
		"as Nomad's":           f.Token(f.Header(""), strings.Replace(asNomad, `"iss":"https://nomad.example",`, "", 1)),
		"no typ":               f.Token(`{"alg":"EdDSA","kid":"6e1f.A_b-9"}`, goodClaims(epoch, "")),
		"members in any order": f.Token(`{"typ":"JWT","kid":"6e1f.A_b-9","alg":"EdDSA"}`, goodClaims(epoch, "")),
		"blanks": f.Token(" {\t\"alg\" :\n\"EdDSA\" , \"kid\":\"6e1f.A_b-9\" }\r\n",
			strings.ReplaceAll(goodClaims(epoch, ""), ",", " ,\n\t ")),
		"escapes": f.Token(`{"\u0061lg":"\u0045dDSA","kid":"6e1f.A_b-9"}`,
			goodClaims(epoch, `,"nomad_job_id":"\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t"`)),
		"two audiences": f.Token(f.Header(""), withAud(epoch, `["other","vault.io"]`)),
		"claims of all kinds": f.Token(f.Header(""),
			goodClaims(epoch, `,"a":null,"b":true,"c":false,"d":-0.5e-3,"e":0,"f":[1,"x",{}],"g":{"h":{}}`)),
		"names alike elsewhere": f.Token(f.Header(""), goodClaims(epoch, `,"a":{"a":{"a":1},"b":1},"b":{"a":1}`)),
		"ours elsewhere": f.Token(f.Header(""),
			goodClaims(epoch, `,"a":{"taskapi_role":"root","EXP":1},"b":[{"exp":1,"nomad_task":2}]`)),
		"63 names":               f.Token(f.Header(""), goodClaims(epoch, manyNames(58))),
		"a lifetime of a second": f.Token(f.Header(""), withExp(fmt.Sprint(epoch.Unix()+1))),
		"the longest lifetime":   f.Token(f.Header(""), withExp(fmt.Sprint(longest))),
		"iat within the leeway":  f.Token(f.Header(""), withExp(fmt.Sprintf(`%d,"iat":%d`, epoch.Unix()+60, epoch.Unix()+1))),
		"of 4 KiB":               f.Token(f.Header(""), goodClaims(epoch, `,"x":"`+strings.Repeat("a", 2790)+`"`)),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := v.Verify(token, epoch); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNomadsClaimsAreRead(t *testing.T) {
	f := newIssuer("nomad", 'n')
	v := newVerifier(t, identity.VerifierConfig{Local: identitytest.Keyring(t),
		Foreign: []identity.Issuer{{Keys: f.KeySet(t), Name: "https://nomad.example"}}})
	verified := must.Get(v.Verify(f.Token(f.Header(""), asNomad), epoch))(t)
	want := taskClaims()
	want.ID, want.Issuer = "6a3f0c5e-93f7-1f5a-0b5c-0e5d3c0a7b11", "https://nomad.example"
	want.ExtraClaims = map[string]string{"nomad_workload_id": "global:default:web"}
	if diff := cmp.Diff(want, verified.Claims); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

// TestExtraClaimsDecideNothing: an extra claim with the name of a standard claim changes no standard claim.
func TestExtraClaimsDecideNothing(t *testing.T) {
	ring := identitytest.Keyring(t)
	v := newVerifier(t, identity.VerifierConfig{Local: ring})
	want := taskClaims()
	want.Task = "" // nothing else may fill it in
	want.ExtraClaims = map[string]string{
		"nomad_task": "server", "taskapi_role": "operator", "exp": "99999999999", "aud": "x", "sub": "global:a:b:c:d:e",
		"Nomad_Job_ID": "1", "extra_claims": "x", "": "", `"},"taskapi_role":"operator`: `\"},"exp":1`,
	}
	got := must.Get(v.Verify(identitytest.Sign(t, ring, want), epoch))(t)
	if diff := cmp.Diff(want, got.Claims); diff != "" {
		t.Errorf("claims (-signed +verified):\n%s", diff)
	}
}

func TestExtraClaimsAreAnObjectOfStrings(t *testing.T) {
	f := newIssuer("f", 'f')
	for value, good := range map[string]bool{
		`{}`: true, `{"a":"b"}`: true, `{"A":"b"}`: true,
		`null`: false, `"a"`: false, `["a"]`: false, `{"a":1}`: false, `{"a":null}`: false, `{"a":["b"]}`: false,
		`{"a":{"b":"c"}}`: false, `{"a":"b","A":"b"}`: false, `{"a":"b"},"extra_claims":{"a":"c"}`: false,
		`{"a":"b"},"EXTRA_CLAIMS":{}`: false,
	} {
		_, err := identity.Check(f.Token(f.Header(""), goodClaims(epoch, `,"extra_claims":`+value)))
		if reason, _ := identity.ReasonOf(err); good != (err == nil) || !good && reason != identity.ReasonClaims {
			t.Errorf("extra_claims %s: %v, want accepted: %v", value, err, good)
		}
	}
}

// Another issuer's key vouches for tokens of that issuer alone, and for whom it may.
func TestIssuers(t *testing.T) {
	named, plain, own := newIssuer("named", 'n'), newIssuer("plain", 'p'), newIssuer("own", 'o')
	v := newVerifier(t, identity.VerifierConfig{
		Local: own.KeySet(t), Audiences: []string{"nomadproject.io"}, Foreign: []identity.Issuer{
			{Keys: named.KeySet(t), Name: "https://nomad.example", Audiences: []string{"taskapi", "other"}},
			{Keys: plain.KeySet(t)},
		},
	})
	claims := func(aud, more string) string {
		return strings.TrimSuffix(withAud(epoch, aud), "}") + more + "}"
	}
	const iss = `,"iss":"https://nomad.example"`
	for _, test := range []struct {
		f         tokenIssuer
		aud, more string
		want      identity.Reason
	}{
		{named, `"taskapi"`, iss, ""},
		{named, `["x","other"]`, iss, ""},
		{named, `"nomadproject.io"`, iss, identity.ReasonAudience},
		{named, `"taskapi"`, "", identity.ReasonIssuer},
		{named, `"taskapi"`, `,"iss":""`, identity.ReasonIssuer},
		{named, `"taskapi"`, `,"iss":"https://nomad.example/"`, identity.ReasonIssuer},
		{named, `"taskapi"`, `,"iss":"https://nomad.exampl"`, identity.ReasonIssuer},
		{named, `"taskapi"`, `,"iss":"HTTPS://nomad.example"`, identity.ReasonIssuer},
		{named, `"taskapi"`, `,"iss":"https://nomad.example,https://b.example"`, identity.ReasonIssuer},
		{plain, `"nomadproject.io"`, "", ""},
		{plain, `"nomadproject.io"`, iss, identity.ReasonIssuer},
		{plain, `"taskapi"`, "", identity.ReasonAudience},
		{plain, `"nomadproject.io"`, `,"taskapi_role":"operator"`, identity.ReasonRole},
		{own, `"nomadproject.io"`, `,"taskapi_role":"operator"`, ""},
		{own, `"nomadproject.io"`, iss, ""}, // what our own are called may change
		{own, `"taskapi"`, iss, identity.ReasonAudience},
	} {
		_, err := v.Verify(test.f.Token(test.f.Header(""), claims(test.aud, test.more)), epoch)
		if reason, _ := identity.ReasonOf(err); reason != test.want {
			t.Errorf("aud %s%s of %q: %v, want %q", test.aud, test.more, test.f.Header(""), err, test.want)
		}
	}
}

func TestTimeOfAKeptToken(t *testing.T) {
	f := newIssuer("f", 'f')
	v := newVerifier(t, identity.VerifierConfig{Local: f.KeySet(t)})
	verified := must.Get(v.Verify(f.Token(f.Header(""), goodClaims(epoch, "")), epoch))(t)
	for _, c := range []struct {
		after time.Duration
		want  identity.Reason
	}{
		{0, ""}, {-time.Second, ""}, {-time.Second - 1, identity.ReasonNotYetValid}, {time.Hour - 1, ""},
		{time.Hour, identity.ReasonExpired},
	} {
		got, _ := identity.ReasonOf(verified.CheckTime(epoch.Add(c.after)))
		if got != c.want {
			t.Errorf("%v after it was issued: %q, want %q", c.after, got, c.want)
		}
	}
}

func TestTrusts(t *testing.T) {
	f, other := newIssuer("f", 'f'), newIssuer("f", 'o')
	local, foreign := &swap{}, &swap{}
	v := newVerifier(t, identity.VerifierConfig{Local: local, Foreign: []identity.Issuer{{Keys: foreign}}})
	local.set = f.KeySet(t)
	verified := must.Get(v.Verify(f.Token(f.Header(""), goodClaims(epoch, "")), epoch))(t)
	for _, c := range []struct {
		name           string
		local, foreign *identity.KeySet
		want           bool
	}{
		{"as it was", f.KeySet(t), nil, true},
		{"removed", nil, nil, false},
		{"another key under its ID", other.KeySet(t), nil, false},
		{"another's key under its ID", f.KeySet(t), other.KeySet(t), true},
		{"with another issuer now", nil, f.KeySet(t), false},
		{"there again", f.KeySet(t), nil, true},
	} {
		local.set, foreign.set = c.local, c.foreign
		if got := v.Trusts(verified); got != c.want {
			t.Errorf("%s: Trusts says %v, want %v", c.name, got, c.want)
		}
	}
}

// swap is a KeySource that a test changes.
type swap struct{ set *identity.KeySet }

func (s *swap) Keys() *identity.KeySet { return s.set }

func TestLocalKeysWin(t *testing.T) {
	mine, theirs := newIssuer("same", 'm'), newIssuer("same", 't')
	v := newVerifier(t, identity.VerifierConfig{Local: mine.KeySet(t),
		Foreign: []identity.Issuer{{Keys: theirs.KeySet(t)}}})
	if _, err := v.Verify(mine.Token(mine.Header(""), goodClaims(epoch, `,"taskapi_role":"operator"`)),
		epoch); err != nil {
		t.Error("token of the local key:", err)
	}
	_, err := v.Verify(theirs.Token(theirs.Header(""), goodClaims(epoch, "")), epoch)
	if reason, _ := identity.ReasonOf(err); reason != identity.ReasonSignature {
		t.Errorf("token of another's key with the same ID: %v, want reason signature", err)
	}
}

func TestKeptTokenCostsNothing(t *testing.T) {
	f := newIssuer("f", 'f')
	v := newVerifier(t, identity.VerifierConfig{Local: f.KeySet(t)})
	verified := must.Get(v.Verify(f.Token(f.Header(""), goodClaims(epoch, "")), epoch))(t)
	for name, use := range map[string]func(){
		"good":          func() { _ = verified.CheckTime(epoch) },
		"expired":       func() { _ = verified.CheckTime(epoch.Add(2 * time.Hour)) },
		"not yet valid": func() { _ = verified.CheckTime(epoch.Add(-time.Hour)) },
		"trusted":       func() { _ = v.Trusts(verified) },
	} {
		if n := testing.AllocsPerRun(100, use); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

func TestVerifierConfigIsChecked(t *testing.T) {
	keys := newIssuer("f", 'f').KeySet(t)
	for name, c := range map[string]identity.VerifierConfig{
		"no local keys":     {},
		"a nil source":      {Local: keys, Foreign: []identity.Issuer{{Keys: nil}}},
		"negative lifetime": {Local: keys, MaxTTL: -1},
		"an empty audience": {Local: keys, Audiences: []string{""}},
		"one of an issuer":  {Local: keys, Foreign: []identity.Issuer{{Keys: keys, Audiences: []string{""}}}},
	} {
		if v, err := identity.NewVerifier(c); err == nil || v != nil {
			t.Errorf("%s: got %v and %v, want an error", name, v, err)
		}
	}
}

func TestSignRefusesWhatCheckWould(t *testing.T) {
	ring := identitytest.Keyring(t)
	for name, edit := range map[string]func(*identity.Claims){
		"no expiry":                func(c *identity.Claims) { c.ExpiresAt = 0 },
		"negative expiry":          func(c *identity.Claims) { c.ExpiresAt = -1 },
		"expiry in year 10000":     func(c *identity.Claims) { c.ExpiresAt = 253402300800 },
		"nbf after exp":            func(c *identity.Claims) { c.NotBefore = c.ExpiresAt + 1 },
		"no audience":              func(c *identity.Claims) { c.Audience = nil },
		"empty audience":           func(c *identity.Claims) { c.Audience = []string{"a", ""} },
		"unknown role":             func(c *identity.Claims) { c.Role = "admin" },
		"operator of a task":       func(c *identity.Claims) { c.Role = identity.RoleOperator },
		"a job that is not UTF-8":  func(c *identity.Claims) { c.JobID = "a\xff" },
		"a task with a NUL":        func(c *identity.Claims) { c.Task = "a\x00" },
		"too long for one request": func(c *identity.Claims) { c.JobID = strings.Repeat("j", 4096) },
		"too much extra":           func(c *identity.Claims) { c.ExtraClaims["a"] = strings.Repeat("e", 4096) },
		"extra that is not UTF-8":  func(c *identity.Claims) { c.ExtraClaims["\xff"] = "a" },
		"two extras of one name":   func(c *identity.Claims) { c.ExtraClaims["\xff"], c.ExtraClaims["\xfe"] = "a", "a" },
	} {
		c := taskClaims()
		c.ExtraClaims = map[string]string{}
		edit(&c)
		if err := identity.CheckSign(c); err == nil {
			t.Errorf("%s: CheckSign finds nothing", name)
		}
		token, err := ring.Sign(c)
		if e, ok := errors.AsType[*identity.Error](err); !ok || !structural(e.Reason) || token != "" {
			t.Errorf("%s: got a token of %d bytes and %v, want a structural reason", name, len(token), err)
		}
	}
}

// TestWhatIsSignedVerifies signs claims of any content and expects them back.
func TestWhatIsSignedVerifies(t *testing.T) {
	ring := identitytest.Keyring(t)
	v := newVerifier(t, identity.VerifierConfig{Local: ring, Audiences: []string{"a"}})
	text := rapid.StringOfN(rapid.Rune().Filter(func(r rune) bool { return r != 0 }), 0, 40, -1)
	rapid.Check(t, func(t *rapid.T) {
		now := epoch.Unix()
		want := identity.Claims{
			ID: rapid.StringN(1, 40, -1).Filter(func(s string) bool { return !strings.Contains(s, "\x00") }).Draw(t,
				"jti"),
			Issuer:  text.Draw(t, "iss"),
			Subject: text.Draw(t, "sub"),
			Audience: rapid.Permutation(append(rapid.SliceOfN(rapid.StringMatching("[b-z]+"), 0, 3).Draw(t, "others"),
				"a")).Draw(t, "aud"),
			IssuedAt:     rapid.Int64Range(0, now).Draw(t, "iat"),
			NotBefore:    rapid.Int64Range(0, now).Draw(t, "nbf"),
			ExpiresAt:    now + rapid.Int64Range(1, 366*24*3600).Draw(t, "ttl"),
			Namespace:    text.Draw(t, "namespace"),
			JobID:        text.Draw(t, "job"),
			AllocationID: text.Draw(t, "allocation"),
			ExtraClaims:  rapid.MapOfN(rapid.StringMatching("[a-z:]*"), text, 0, 5).Draw(t, "extra"),
		}
		if len(want.ExtraClaims) == 0 {
			want.ExtraClaims = nil
		}
		if rapid.Bool().Draw(t, "operator") {
			want.Role = identity.RoleOperator
		} else {
			want.Task = text.Draw(t, "task")
		}
		token := must.Get(ring.Sign(want))(t)
		got := must.Get(v.Verify(token, epoch))(t)
		if diff := cmp.Diff(want, got.Claims); diff != "" {
			t.Errorf("claims (-signed +verified):\n%s", diff)
		}
	})
}

func TestSignMakesAnID(t *testing.T) {
	ring := identitytest.Keyring(t)
	c := taskClaims()
	c.ID = ""
	var ids []string
	for range 2 {
		u := must.Get(identity.Check(identitytest.Sign(t, ring, c)))(t)
		ids = append(ids, u.Claims.ID)
	}
	if ids[0] == ids[1] || slices.Contains(ids, "") {
		t.Errorf("token IDs %q, want two that differ", ids)
	}
}

package agent

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"taskapi/identity"
	"taskapi/internal/must"
)

func TestIssuerFlag(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]struct {
		source string
		issuer identity.Issuer
		says   string
	}{
		"a.json":                 {source: "a.json"},
		"a,b.json":               {source: "a,b.json"},
		"https://a/?x=1,2":       {source: "https://a/?x=1,2"},
		"a,b.json,iss=https://i": {source: "a,b.json", issuer: identity.Issuer{Name: "https://i"}},
		"https://a/k,aud=x,iss=https://i,aud=y": {source: "https://a/k",
			issuer: identity.Issuer{Name: "https://i", Audiences: []string{"x", "y"}}},
		"":                 {says: "names no file or URL"},
		",iss=x":           {says: "names no file or URL"},
		"a,iss=":           {says: `"iss=" is no option`},
		"a,iss=x,issuer=y": {says: `"issuer=y" is no option`},
		"a,issuer=y":       {says: `"issuer=y" is no option`},
		"a,iss=x,iss=y":    {says: "twice"},
		"a,exp=optional":   {source: "a", issuer: identity.Issuer{NoExpiry: true}},
		"a,exp=never":      {says: `"exp=never" is no option`},
		"a,iss=x,claim.sub=system:serviceaccount:prod:{task},claim./kubernetes.io/namespace=prod": {source: "a",
			issuer: identity.Issuer{Name: "x", Mapping: mapping(t, "sub", "system:serviceaccount:prod:{task}",
				"/kubernetes.io/namespace", "prod")}},
		"a,iss=x,claim.sub=prod":                  {says: "no claim gives the task"},
		"a,iss=x,exp=optional,claim.sub={task}":   {says: "exp=optional is for tokens with Nomad's claims"},
		"a,iss=x,claim.sub={task}{job}":           {says: "there must be a '/' or ':'"},
		"a,iss=x,claim.sub={tsk}":                 {says: "{tsk} is no part"},
		"a,iss=x,claim.sub=":                      {says: `"claim.sub=" is no option`},
		"a,iss=x,claim.=x":                        {says: `"" names no claim`},
		"a,iss=x,claim.sub={task},claim.sub=prod": {says: "twice"},
	} {
		source, is, err := issuerOf(value)
		if want.says != "" {
			if err == nil || !strings.Contains(err.Error(), want.says) {
				t.Errorf("%q: %v, want an error that says %q", value, err, want.says)
			}
		} else if err != nil || source != want.source || !reflect.DeepEqual(is, want.issuer) {
			t.Errorf("%q: %q, %+v, %v; want %q, %+v", value, source, is, err, want.source, want.issuer)
		}
	}
	for place, good := range map[string]bool{
		"http://example.org/jwks": false, "http://10.0.0.1/jwks": false, "http://localhost.example.org/": false,
		"HTTP://example.org/":                         false,
		"http://127.0.0.1:4646/.well-known/jwks.json": true, "http://[::1]/": true, "http://localhost/": true,
		"http://LOCALHOST/": true, "https://example.org/jwks": true,
	} {
		var log strings.Builder
		if _, err := openIssuer(place, slog.New(slog.NewTextHandler(&log, nil))); (err == nil) != good {
			t.Errorf("%s: %v, want it taken: %v", place, err, good)
		}
		if warned := strings.Contains(log.String(),
			"any user of this machine can listen there"); warned != strings.Contains(place, ":4646") {
			t.Errorf("%s: %q", place, log.String())
		}
	}
}

// mapping returns a mapping of claims, each of which is followed by its pattern.
func mapping(t *testing.T, claims ...string) *identity.Mapping {
	t.Helper()
	m := new(identity.Mapping)
	for i := 0; i < len(claims); i += 2 {
		must.OK(t, m.Add(claims[i], claims[i+1]))
	}
	return m
}

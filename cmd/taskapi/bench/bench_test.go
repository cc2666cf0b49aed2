package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskapi/internal/must"
)

func TestRatioOfComparesRoundsMeasuredInTurn(t *testing.T) {
	got := ratioOf([]float64{50, 90, 100}, []float64{100, 100, 200})
	if want := (ratio{0.5, 0.5, 0.9}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := ratioOf([]float64{0}, []float64{0}); got != (ratio{1, 1, 1}) {
		t.Errorf("of two figures of 0: got %+v, want 1", got)
	}
}

// TestSpreadOfRatios holds which of the sorted ratios bound the median: by the tables of the sign test, at most one
// case of 200 lies below the fourth of twenty.
func TestSpreadOfRatios(t *testing.T) {
	for n, skip := range map[int]int{1: 0, 3: 0, 9: 0, 12: 1, 20: 3} {
		above, below := make([]float64, n), make([]float64, n)
		for i := range n {
			above[i], below[i] = float64(10*(n-i)), 10
		}
		want := ratio{float64(n+1) / 2, float64(1 + skip), float64(n - skip)}
		if got := ratioOf(above, below); got != want {
			t.Errorf("of the ratios 1 to %d: got %+v, want %+v", n, got, want)
		}
	}
}

// TestVerdicts holds that only a figure whose whole spread is above 1 is worse, and that a table of revisions alone
// judges.
func TestVerdicts(t *testing.T) {
	ways := []way{{name: "new"}, {name: "old"}}
	for _, test := range []struct {
		new     []float64
		verdict string
		compare bool
		err     error
	}{
		{[]float64{12, 13, 14}, "worse", true, errWorse},
		{[]float64{12, 13, 14}, "", false, nil},
		{[]float64{9, 13, 14}, "", true, nil},
		{[]float64{10.05, 10.05, 10.05}, "", true, nil},
		{[]float64{7, 8, 9}, "better", true, nil},
	} {
		var out strings.Builder
		figures := []*figure{{"f", times, [][]float64{test.new, {10, 10, 10}}}}
		err := printFigures(&out, "m", ways, figures, test.compare)
		row := strings.Fields(strings.Split(out.String(), "\n")[1])
		verdict := ""
		if last := row[len(row)-1]; !strings.HasSuffix(last, ")") {
			verdict = last
		}
		if !errors.Is(err, test.err) || verdict != test.verdict {
			t.Errorf("%v: got %q, %v; want %q, %v, in:\n%s", test.new, verdict, err, test.verdict, test.err, &out)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		all  []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(test.all); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("median of %v: got %v, want %v", test.all, got, test.want)
		}
	}
}

// TestHostileTokensAreWhatTheyClaim checks the signatures: a flood of the wrong kind would measure something else.
func TestHostileTokensAreWhatTheyClaim(t *testing.T) {
	i := newIssuer()
	const alloc = "5e0b1c1a-0000-4000-8000-000000000001"
	claims := map[string]any{"iat": 1_700_000_000, "nomad_allocation_id": alloc}
	good := sign(i.trusted, map[string]any{"alg": "EdDSA", "kid": "real"}, claims)
	requests, err := i.hostile(good, allocationPath(alloc))
	must.OK(t, err)
	if len(requests) != 4*hostileEach {
		t.Fatalf("got %d requests, want %d", len(requests), 4*hostileEach)
	}
	type kind struct {
		KID             string
		Alloc           bool // the good one's
		Trusted, Forged bool // whose signature it is
	}
	var got []kind
	for _, request := range requests[4:8] {
		_, token, _ := strings.Cut(string(request), "X-Nomad-Token: ")
		token = strings.TrimSpace(token)
		header, claims, err := parse(token)
		if err != nil {
			got = append(got, kind{})
			continue
		}
		got = append(got, kind{
			KID: header["kid"].(string), Alloc: claims["nomad_allocation_id"] == alloc,
			Trusted: signedBy(t, token, i.trusted), Forged: signedBy(t, token, i.forger),
		})
	}
	want := []kind{{}, {"real", true, false, true}, {"nobody-1", true, false, true}, {issuerKID, false, true, false}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the second of each kind (-want +got):\n%s", diff)
	}
}

func signedBy(t *testing.T, token string, key ed25519.PrivateKey) bool {
	t.Helper()
	at := strings.LastIndex(token, ".")
	signature, err := base64.RawURLEncoding.DecodeString(token[at+1:])
	must.OK(t, err)
	return ed25519.Verify(key.Public().(ed25519.PublicKey), []byte(token[:at]), signature)
}

func TestTheKeySetIsJSON(t *testing.T) {
	i := newIssuer()
	var set struct {
		Keys []map[string]string `json:"keys"`
	}
	err := json.Unmarshal(i.jwks(), &set)
	if err != nil || len(set.Keys) != 1 || set.Keys[0]["kid"] != issuerKID || len(set.Keys[0]["x"]) != 43 {
		t.Errorf("got %s, %v; want one Ed25519 key %q", i.jwks(), err, issuerKID)
	}
}

func TestRunRefuses(t *testing.T) {
	for name, args := range map[string][]string{
		"an argument":            {"x"},
		"no rounds":              {"-rounds", "0"},
		"no time":                {"-seconds", "0"},
		"an unknown measurement": {"-binary", "/bin/true", "-run", "z"},
		"a missing binary":       {"-binary", "/no/such"},
		"a taskapi that fails":   {"-binary", "/bin/false", "-run", "throughput"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := run(ctx, io.Discard, args); err == nil {
				t.Error("got no error")
			}
		})
	}
}

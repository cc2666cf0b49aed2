package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskapi/cmd/taskapi/bench/internal/load"
)

func TestRatioOfComparesRoundsMeasuredInTurn(t *testing.T) {
	rounds := func(replies ...int) (all []load.Result) {
		for _, n := range replies {
			all = append(all, load.Result{Replies: n, Elapsed: time.Second})
		}
		return all
	}
	got := ratioOf(rounds(50, 90, 100), rounds(100, 100, 200), load.Result.Rate)
	if want := (ratio{Median: 0.9, Min: 0.5, Max: 0.9}); !cmp.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
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

func TestKilobytes(t *testing.T) {
	const text = "55d0-7ffd ---p 00000000 00:00 0    [rollup]\nRss:                8044 kB\nPss:                6700 kB\nPss_Anon: 1 kB\n"
	if got, err := kilobytes(text, "Pss:"); got != 6700 || err != nil {
		t.Errorf("got %d, %v; want 6700", got, err)
	}
	if _, err := kilobytes(text, "Swap:"); err == nil {
		t.Error("a line that is not there must be an error")
	}
}

func TestParseProcessorTime(t *testing.T) {
	const text = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 7 7 20 0 8 0 1000 1 1"
	if got, err := parseProcessorTime(text); got != 3 || err != nil {
		t.Errorf("got %v, %v; want 3 s", got, err)
	}
	for _, bad := range []string{"", "42 (a) S 1", strings.Replace(text, "250", "x", 1)} {
		if _, err := parseProcessorTime(bad); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}

func TestGrowthComparesRoundsMeasuredInTurn(t *testing.T) {
	rounds := func(pss ...float64) (all []household) {
		for _, v := range pss {
			all = append(all, household{{}, {pss: v}})
		}
		return all
	}
	got := growth(rounds(10, 20, 30), rounds(30, 60, 90), 10, func(h household) float64 { return h[1].pss })
	if want := (figure{Median: 4, Min: 2, Max: 6}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestGroupsThatAreTooLargeAreLeftOut(t *testing.T) {
	if got := (options{most: 50}).upTo(fewTasks); !cmp.Equal(got, []int{1, 3, 50}) {
		t.Errorf("up to 50: %v", got)
	}
	if got := (options{most: 10}).upTo(fewTasks); !cmp.Equal(got, []int{1, 3}) || len(fewTasks) != 3 {
		t.Errorf("up to 10: %v, of %v", got, fewTasks)
	}
}

// TestHostileTokensAreWhatTheyClaim checks the signatures: a flood of the wrong kind would measure something else.
func TestHostileTokensAreWhatTheyClaim(t *testing.T) {
	i, err := newIssuer()
	if err != nil {
		t.Fatal(err)
	}
	const alloc = "5e0b1c1a-0000-4000-8000-000000000001"
	good := sign(i.trusted, map[string]any{"alg": "EdDSA", "kid": "real"}, map[string]any{"iat": 1_700_000_000, "nomad_allocation_id": alloc})
	requests, err := i.hostile(good, checksPath(alloc))
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return ed25519.Verify(key.Public().(ed25519.PublicKey), []byte(token[:at]), signature)
}

func TestTheKeySetIsJSON(t *testing.T) {
	i, err := newIssuer()
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Keys []map[string]string `json:"keys"`
	}
	if err := json.Unmarshal(i.jwks(), &set); err != nil || len(set.Keys) != 1 || set.Keys[0]["kid"] != issuerKID || len(set.Keys[0]["x"]) != 43 {
		t.Errorf("got %s, %v; want one Ed25519 key %q", i.jwks(), err, issuerKID)
	}
}

func TestRunRefuses(t *testing.T) {
	for name, args := range map[string][]string{
		"an argument":            {"x"},
		"no rounds":              {"-rounds", "0"},
		"no time":                {"-seconds", "0"},
		"no tasks":               {"-most", "0"},
		"an unknown measurement": {"-binary", "/bin/true", "-run", "z"},
		"a missing binary":       {"-binary", "/no/such"},
		"a taskapi that fails":   {"-binary", "/bin/false", "-run", "throughput"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := run(ctx, args); err == nil {
				t.Error("got no error")
			}
		})
	}
}

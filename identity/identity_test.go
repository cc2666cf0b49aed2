package identity_test

import (
	"crypto/ed25519"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epoch is the now of tests that choose one.
var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// taskClaims returns those of a task's identity issued at epoch for an hour.
func taskClaims() identity.Claims {
	return identity.Claims{
		ID:           "0a1b2c3d-0000-4000-8000-000000000001",
		Subject:      identity.Subject("global", "default", "web", "app", "server", identity.DefaultName),
		Audience:     []string{identity.DefaultAudience},
		IssuedAt:     epoch.Unix(),
		NotBefore:    epoch.Unix(),
		ExpiresAt:    epoch.Add(time.Hour).Unix(),
		Namespace:    "default",
		JobID:        "web",
		AllocationID: "5d2b1f0e-0000-4000-8000-000000000002",
		Task:         "server",
	}
}

func newVerifier(tb testing.TB, c identity.VerifierConfig) *identity.Verifier {
	tb.Helper()
	return must.Get(identity.NewVerifier(c))(tb)
}

func BenchmarkVerify(b *testing.B) {
	ring := identitytest.Keyring(b)
	v := newVerifier(b, identity.VerifierConfig{Local: ring})
	token := identitytest.Sign(b, ring, taskClaims())
	b.ReportAllocs()
	for b.Loop() {
		must.Get(v.Verify(token, epoch))(b)
	}
}

// BenchmarkVerifyOverRaw verifies a token and its signature alone in turn, so that a busy machine slows both. It
// reports the ratio of their medians, which is to be at most 1.25.
func BenchmarkVerifyOverRaw(b *testing.B) {
	ring := identitytest.Keyring(b)
	v := newVerifier(b, identity.VerifierConfig{Local: ring})
	token := identitytest.Sign(b, ring, taskClaims())
	public, private, err := ed25519.GenerateKey(nil)
	must.OK(b, err)
	message := []byte(token[:len(token)-87])
	signature := ed25519.Sign(private, message)
	var whole, raw []time.Duration
	for b.Loop() {
		start := time.Now()
		_, err := v.Verify(token, epoch)
		between := time.Now()
		ok := ed25519.Verify(public, message, signature)
		whole, raw = append(whole, between.Sub(start)), append(raw, time.Since(between))
		if err != nil || !ok {
			b.Fatal("refused:", err)
		}
	}
	slices.Sort(whole)
	slices.Sort(raw)
	b.ReportMetric(float64(whole[len(whole)/2])/float64(raw[len(raw)/2]), "x-raw")
}

func BenchmarkCheck(b *testing.B) {
	token := identitytest.Sign(b, identitytest.Keyring(b), taskClaims())
	b.ReportAllocs()
	for b.Loop() {
		must.Get(identity.Check(token))(b)
	}
}

// BenchmarkStillGood is what a cache pays on each hit.
func BenchmarkStillGood(b *testing.B) {
	ring := identitytest.Keyring(b)
	v := newVerifier(b, identity.VerifierConfig{Local: ring})
	verified := must.Get(v.Verify(identitytest.Sign(b, ring, taskClaims()), epoch))(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := verified.CheckTime(epoch); err != nil || !v.Trusts(verified) {
			b.Fatal("no longer good:", err)
		}
	}
}

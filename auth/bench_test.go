package auth_test

import (
	"crypto/ed25519"
	"net/http"
	"testing"
	"time"

	"taskapi/auth"
	"taskapi/identity"
	"taskapi/internal/must"
)

// BenchmarkAuthenticateCached is what every request but the first costs: 300 ns and no allocation are promised.
func BenchmarkAuthenticateCached(b *testing.B) {
	w := newFixture(b)
	for _, header := range []string{"X-Nomad-Token", "Authorization"} {
		b.Run(header, func(b *testing.B) {
			r := request("")
			r.Header = http.Header{"Accept-Encoding": {"gzip"}, "User-Agent": {"Go-http-client/1.1"}, header: {w.token(web)}}
			if header == "Authorization" {
				r.Header[header][0] = "Bearer " + r.Header[header][0]
			}
			w.authenticate(b, r)
			b.ReportAllocs()
			for b.Loop() {
				if _, denial := w.authenticator.Authenticate(r, web, peer); denial != nil {
					b.Fatal(denial)
				}
			}
		})
	}
}

func BenchmarkAuthenticateCachedParallel(b *testing.B) {
	w := newFixture(b)
	r := request(w.token(web))
	w.authenticate(b, r)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = w.authenticator.Authenticate(r, web, peer)
		}
	})
}

// authenticate fails unless the request is let in.
func (w *fixture) authenticate(tb testing.TB, r *http.Request) {
	tb.Helper()
	if _, denial := w.authenticator.Authenticate(r, web, peer); denial != nil {
		tb.Fatal(denial)
	}
}

// BenchmarkAuthenticateFirst is a token's first use, and beside it the bare signature check that it can't do without.
func BenchmarkAuthenticateFirst(b *testing.B) {
	b.Run("Authenticate", func(b *testing.B) {
		w := newFixture(b)
		requests := make([]*http.Request, 4096) // more than the cache holds: each comes back as unknown
		for i := range requests {
			requests[i] = request(w.token(web))
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			w.authenticate(b, requests[i%len(requests)])
			i++
		}
	})
	b.Run("ed25519", func(b *testing.B) {
		public, private, err := ed25519.GenerateKey(nil)
		must.OK(b, err)
		message := make([]byte, 480) // a token without its signature
		signature := ed25519.Sign(private, message)
		for b.Loop() {
			if !ed25519.Verify(public, message, signature) {
				b.Fatal("not verified")
			}
		}
	})
}

// BenchmarkRefuse is what junk costs, by kind.
func BenchmarkRefuse(b *testing.B) {
	quiet := func(c *auth.Config) { c.Auditor = nil; c.Limits.MaxDelayed = 1 }
	w := newFixture(b, quiet)
	expired := w.with(web, func(c *identity.Claims) { c.NotBefore, c.IssuedAt, c.ExpiresAt = 0, 0, time.Now().Unix()-1 })
	for name, token := range map[string]string{
		"none": "", "garbage": "garbage", "remembered": forge(w.token(web), 1), "unknown key": unknownKey(w.token(web),
			1), "expired": expired,
	} {
		b.Run(name, func(b *testing.B) {
			r := request(token)
			b.ReportAllocs()
			for b.Loop() {
				if p, _ := w.authenticator.Authenticate(r, web, peer); p != nil {
					b.Fatal("let in")
				}
			}
		})
	}
}

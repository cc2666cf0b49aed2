package authtest

import (
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"testing"
	"time"

	"taskapi/auth/badtokens"
)

// VerifierOption changes the demands of RunVerifier.
type VerifierOption func(d *demands)

type demands struct {
	strict, rotation bool
	skips            []skip
	skipped          map[string]string // why, by the kind's name
}

type skip struct{ why, pattern string }

// Strict demands that the verifier also refuses the Strict kinds of bad tokens: those that the standards let a verifier
// accept, and those that take knowledge of the allocations to refuse. See badtokens.Kind.
func Strict() VerifierOption { return func(d *demands) { d.strict = true } }

// Rotation demands that the verifier accepts tokens of a new key. It is for verifiers that read Server.JWKSURL.
func Rotation() VerifierOption { return func(d *demands) { d.rotation = true } }

// Skip skips kinds, by name or by a pattern of path.Match, such as "kid-*". The reason is shown.
func Skip(reason string, kinds ...string) VerifierOption {
	return func(d *demands) {
		for _, k := range kinds {
			d.skips = append(d.skips, skip{reason, k})
		}
	}
}

// RunVerifier tests a program's own verifier of identities. The verifier must trust the server's keys (JWKSURL or
// PublicKey) and have its audience. It must accept good tokens, and return an error for each kind of bad one, in a
// subtest such as "bad/expired". With the Option OIDC it must also check the issuer. It is called from one goroutine,
// and a panic is a failure.
func RunVerifier(t *testing.T, srv *Server, verify func(token string) error, options ...VerifierOption) {
	t.Helper()
	d := demands{skipped: map[string]string{}}
	for _, o := range options {
		o(&d)
	}
	if err := d.check(badtokens.All()); err != nil {
		t.Fatalf("authtest: %v", err)
	}
	if moved := time.Duration(srv.ahead.Load()); moved != 0 {
		t.Fatalf("authtest: the server's clock was moved by %v, and the verifier's was not: use another server", moved)
	}
	task := srv.firstTask
	for _, c := range goodTokens(task) {
		t.Run("good/"+c.name, func(t *testing.T) {
			if err := guarded(t, verify, c.token); err != nil {
				t.Errorf("a good token is refused (%s): %v\n%s", c.what, err, c.token)
			}
		})
	}
	for _, kind := range badtokens.All() {
		if kind.Foreign && task.server.config.issuer == "" || kind.Strict && !d.strict {
			continue
		}
		t.Run("bad/"+kind.Name, func(t *testing.T) { runBad(t, kind, task.good(nil), verify, &d) })
	}
	if !d.rotation {
		return
	}
	t.Run("good/of-a-new-key", func(t *testing.T) {
		before := task.Token()
		srv.RotateKey()
		for what, token := range map[string]string{"of the key before the rotation": before, "of the new key": task.Token()} {
			if err := guarded(t, verify, token); err != nil {
				t.Errorf("a good token is refused (%s): %v\n%s", what, err, token)
			}
		}
	})
}

func runBad(t *testing.T, kind badtokens.Kind, good badtokens.Good, verify func(string) error, d *demands) {
	t.Helper()
	if why, skipped := d.skipped[kind.Name]; skipped {
		t.Skip(why)
	}
	token, err := kind.Token(good)
	if errors.Is(err, badtokens.ErrNotApplicable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if guarded(t, verify, token) == nil {
		t.Errorf("a bad token is accepted: %s\n%.2000s", kind.Wrong, token)
	}
}

// check notes which kinds are skipped. A skip without effect or reason is an error.
func (d *demands) check(kinds []badtokens.Kind) error {
	for _, s := range d.skips {
		found := false
		for _, k := range kinds {
			ok, err := path.Match(s.pattern, k.Name)
			if err != nil {
				return fmt.Errorf("skip %q: %w", s.pattern, err)
			}
			if ok {
				found, d.skipped[k.Name] = true, s.why
			}
		}
		switch {
		case !found:
			return fmt.Errorf("skip %q: no kind of bad token has this name%s", s.pattern, similar(s.pattern))
		case s.why == "":
			return fmt.Errorf("skip %q: say why", s.pattern)
		}
	}
	return nil
}

type goodToken struct{ name, what, token string }

func goodTokens(task *Task) []goodToken {
	audience := task.server.config.audience[0]
	return []goodToken{
		{"token", "of the task's default identity", task.Token()},
		{"short", "it lives for a minute", task.Token(WithTTL(time.Minute))},
		{"long", "it lives for a year", task.Token(WithTTL(365 * 24 * time.Hour))},
		{"audiences", "aud is an array with another audience first", task.Token(WithAudience("another.example", audience))},
		{"claims", "it has claims that nobody knows", task.Token(WithClaim("unknown", map[string]any{"a": []int{1, 2}}))},
		{"claims-of-text", "a claim has letters of many alphabets", task.Token(WithClaim("unknown", "é 語 \U0001F600"))},
		{"no-nbf", "nbf is missing", task.good([]TokenOption{func(g *badtokens.Good) { g.Claims.NotBefore = 0 }}).Token()},
		{"other-identity", "of another identity of the task", task.Token(WithIdentity("another"))},
	}
}

// guarded calls a verifier, and fails the test when it panics.
func guarded(t *testing.T, verify func(string) error, token string) error {
	t.Helper()
	defer func() {
		if why := recover(); why != nil {
			t.Fatalf("the verifier panics: %v\n%.2000s\n%s", why, token, debug.Stack())
		}
	}()
	return verify(token)
}

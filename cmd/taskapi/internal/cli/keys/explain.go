package keys

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"taskapi/auth"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/identity"
	"taskapi/identity/opaque"
	"taskapi/identity/revocation"
)

type explainFlags struct {
	base.KeyFlags
	jwks, audience []string
	task           string
	output         base.OutputFlags
}

func tokenExplain(w base.Environment) *cobra.Command {
	f := &explainFlags{}
	cmd := &cobra.Command{
		Use:        "explain [flags] [FILE|-]",
		SuggestFor: []string{"inspect", "decode", "verify", "self"},
		Short:      "Say what is in a token, and why it would be refused",
		Long: `Prints what is in a token, and whether its allocation's API would refuse it now, with the reason.

It prints the header, the claims, and the times in words. The reason is the one that the audit log has. The signature
is never printed. FILE, or standard input, has the token, or the operator's secret that stands for one.

The keys are those of --jwks and, if you can read it, of the key ring. Without keys, everything but the signature is
checked. With the key ring, the token is also held against the allocation and the revoked tokens of the data
directory.`,
		Example: `  taskapi token explain token.jwt
  taskapi token explain --jwks jwks.json < token.jwt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := readToken(w, args)
			if err != nil {
				return err
			}
			e, err := f.explain(w, token)
			if err != nil {
				return err
			}
			return f.output.Print(w, e, nil, func() error { return e.print(w) })
		},
	}
	f.Add(cmd)
	cmd.Flags().StringArrayVar(&f.jwks, "jwks", nil,
		"`FILE` with a JWK set whose keys are trusted, too; FILE,iss=ISSUER,aud=AUDIENCE for one issuer's tokens for one "+
			"audience; may be repeated")
	cmd.Flags().StringArrayVar(&f.audience, "audience", nil,
		"`AUDIENCE` that the token must name (default the allocation's, or "+identity.DefaultAudience+"); may be repeated")
	cmd.Flags().StringVar(&f.task, "task", "", "`TASK` on whose socket the token is used (default its own)")
	base.AddOutput(cmd, &f.output)
	return cmd
}

type explained struct {
	Header    json.RawMessage `json:",omitempty"` // absent when it is no JSON
	Claims    json.RawMessage `json:",omitempty"`
	Times     []timeLine      `json:",omitempty"`
	KeyID     string          `json:",omitempty"`
	Signature string          // "good", "bad" or "not checked"
	Unchecked string          `json:",omitempty"` // why the signature was not checked
	Accepted  *bool           `json:",omitempty"` // absent if that can't be known without keys
	Reason    string          `json:",omitempty"` // of the refusal
	Detail    string          `json:",omitempty"`
	Status    int             `json:",omitempty"` // of the answer
}

// timeLine is a time of a token, in words.
type timeLine struct {
	Claim string
	Time  time.Time
	Words string
}

func (f *explainFlags) explain(w base.Environment, token string) (*explained, error) {
	if opaque.Is(token) {
		l, err := base.NewLayout(f.DataDir, w)
		if err == nil {
			token, err = standsFor(l, token)
		}
		if err != nil {
			return nil, err
		}
	}
	e := &explained{Signature: "not checked"}
	segments := strings.Split(token, ".")
	e.Header, e.Claims = readable64(segments, 0), readable64(segments, 1)
	unverified, err := identity.Check(token)
	if err != nil {
		e.refuse(auth.ReasonOf(err), err)
		e.Unchecked = "its form is refused before any key is looked at"
		return e, nil
	}
	e.KeyID, e.Times = unverified.KeyID, timesOf(&unverified.Claims, time.Now())
	authenticator, missing, done, err := f.authenticator(w, &unverified.Claims)
	if err != nil {
		return nil, err
	}
	defer done()
	task := cmp.Or(f.task, unverified.Claims.Task)
	why, words, err := authenticator.Evaluate(token, task)
	if err != nil {
		return nil, err
	}
	switch why {
	case auth.UnknownKey:
		e.Unchecked = "no key of this data directory or of --jwks has its kid"
		if missing == "" {
			break
		}
		e.Unchecked += "; " + missing
		if len(authenticator.Settings.JWKS) == 0 {
			e.Unchecked = missing
		}
		// A fault in the claims refuses the token, and without one nothing is known.
		why, words, err := authenticator.EvaluateClaims(&unverified.Claims)
		if err == nil && why != auth.NotRefused {
			e.refuse(why, words)
		}
		return e, nil
	case auth.BadSignature:
		e.Signature = "bad"
	default:
		e.Signature = "good"
	}
	switch {
	case why == auth.UnknownAllocation && authenticator.Allocation == nil:
		words = errors.New("its allocation is not in this data directory")
	case words != nil:
	case why == auth.WrongClaims:
		words = errors.New("its namespace, job, task and sub are not those of a task of its allocation")
	case why == auth.EarlierLife:
		words = errors.New("taskapi_allocation_life is not that of the allocation's present life")
	case why == auth.WrongSocket:
		words = fmt.Errorf("it is the token of %s, and this is the socket of %s", socketOf(unverified.Claims.Task),
			socketOf(task))
	}
	e.refuse(why, words)
	return e, nil
}

// socketOf names the owner of the socket that a task's name stands for.
func socketOf(task string) string {
	if task == "" {
		return "no task"
	}
	return fmt.Sprintf("task %q", task)
}

// authenticator returns the authenticator that checks the token, and why keys are missing. The caller calls done after
// use.
func (f *explainFlags) authenticator(w base.Environment, c *identity.Claims) (d agent.OfflineAuthenticator,
	missing string, done func(), err error) {
	d, done = agent.OfflineAuthenticator{Settings: agent.DefaultSettings(), AllocationID: c.AllocationID}, func() {}
	l, err := base.NewLayout(f.DataDir, w)
	if err == nil {
		_, err = os.ReadDir(l.Keyring())
	}
	if err != nil {
		missing = "there is no key ring that this user can read; --jwks gives keys"
	} else {
		if d, err = authenticatorOf(l, c.AllocationID); err != nil {
			return d, "", done, err
		}
		ring, err := l.OpenKeyring(cmp.Or(f.SealKey, d.Settings.SealKey))
		if err != nil {
			missing = err.Error()
		} else {
			d.Keys = ring
		}
		list, err := openRevocations(l)
		switch {
		case err == nil:
			d.Revocations, done = list, func() { _ = list.Close() }
		case d.Keys != nil && !errors.Is(err, fs.ErrNotExist):
			w.Warnf("warning: %v", err)
			d.Revocations = unknownRevocations{}
		}
	}
	d.Settings.JWKS = append(d.Settings.JWKS, f.jwks...)
	if len(f.audience) > 0 {
		d.Settings.Audiences = f.audience
	}
	return d, missing, done, nil
}

// unknownRevocations stands for a list that can't be read: then the API refuses every task's token.
type unknownRevocations struct{}

var _ auth.Revocations = unknownRevocations{}

// Revoked reports whether a token counts as revoked.
func (unknownRevocations) Revoked(c *identity.Claims) bool { return c.Role != identity.RoleOperator }

// openRevocations opens the list of a data directory, if there is one.
func openRevocations(l base.Layout) (*revocation.List, error) {
	if _, err := os.Stat(l.Revocations()); err != nil {
		return nil, err
	}
	return revocation.Open(revocation.Config{Dir: l.Revocations()})
}

func (e *explained) refuse(why auth.Reason, words error) {
	accepted := why == auth.NotRefused
	e.Accepted = &accepted
	if accepted {
		return
	}
	e.Reason, e.Status = why.String(), why.Status()
	if bad, ok := errors.AsType[*identity.Error](words); ok {
		e.Detail = bad.Detail
	} else if words != nil {
		e.Detail = words.Error()
	}
}

// maxParts bounds the objects and arrays that are shown: indented, 50 KB of brackets would become hundreds of MB.
const maxParts = 64

// readable64 returns a segment's JSON, nil if it is no JSON or has more than maxParts objects and arrays.
func readable64(segments []string, i int) json.RawMessage {
	if i >= len(segments) {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(segments[i], "="))
	if err != nil || bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > maxParts || !json.Valid(text) {
		return nil
	}
	return text
}

func timesOf(c *identity.Claims, now time.Time) []timeLine {
	var lines []timeLine
	for _, t := range []struct {
		claim, before, after string
		at                   int64
	}{
		{"iat", "issued %s ago", "issued in %s", c.IssuedAt},
		{"nbf", "began %s ago", "begins in %s", c.NotBefore},
		{"exp", "expired %s ago", "expires in %s", c.ExpiresAt},
	} {
		if t.at == 0 {
			continue
		}
		at := time.Unix(t.at, 0)
		words := fmt.Sprintf(t.before, output.Duration(now.Sub(at)))
		if now.Before(at) {
			words = fmt.Sprintf(t.after, output.Duration(at.Sub(now)))
		}
		lines = append(lines, timeLine{t.claim, at, words})
	}
	return lines
}

func (e *explained) print(w base.Environment) error {
	var b bytes.Buffer
	for _, part := range []struct {
		name string
		text json.RawMessage
	}{{"Header", e.Header}, {"Claims", e.Claims}} {
		fmt.Fprintf(&b, "%s\n", part.name)
		var indented bytes.Buffer
		if part.text == nil || json.Indent(&indented, part.text, "  ", "  ") != nil {
			b.WriteString("  (it is not JSON in base64url, or has more values than are printed)\n")
			continue
		}
		for line := range strings.Lines("  " + indented.String()) {
			b.WriteString(linewriter.OneLine(strings.TrimSuffix(line, "\n")) + "\n")
		}
	}
	if len(e.Times) > 0 {
		b.WriteString("Times\n")
		table := output.Table{Indent: 2}
		for _, t := range e.Times {
			table.Row(t.Claim, output.Date(t.Time), t.Words)
		}
		b.WriteString(table.String())
	}
	b.WriteString("Signature\n  " + e.Signature)
	if e.Unchecked != "" {
		b.WriteString(": " + linewriter.OneLine(e.Unchecked))
	}
	b.WriteString("\nVerdict\n  " + e.verdict() + "\n")
	_, err := w.Stdout.Write(b.Bytes())
	return err
}

func (e *explained) verdict() string {
	switch {
	case e.Accepted == nil:
		return "nothing is wrong with its form, its times and its audience; whether it is accepted takes the keys"
	case *e.Accepted:
		return "accepted"
	}
	text := fmt.Sprintf("refused with %d: %s", e.Status, e.Reason)
	if e.Detail != "" {
		text += ": " + linewriter.OneLine(e.Detail)
	}
	return text
}

package keys

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/identity"
	"taskapi/identity/opaque"
	"taskapi/internal/privatefile"
	"taskapi/internal/slice"
)

type mintFlags struct {
	base.KeyFlags
	at        base.TargetFlags
	audience  []string
	ttl       time.Duration
	claims    []string
	bad       string
	all, list bool
	operator  bool
	opaque    bool // print a secret that stands for the token
	out       string
	output    base.OutputFlags
}

func tokenMint(w base.Environment) *cobra.Command {
	f := &mintFlags{}
	cmd := &cobra.Command{
		Use:        "mint [flags]",
		SuggestFor: []string{"create", "new", "make", "bad"},
		Short:      "Make a token of a task, a good one or a bad one",
		Long: `Makes a token like the task's own, signed with the active key, and prints it.

The running allocation accepts the token as the task's. With --bad NAME, the token has that fault and no other, such
as expired, not-yet, wrong-key, tampered, other-alloc or alg-none. --list prints the kinds, what is wrong with each,
and what the API answers.

Only the owner of the key ring can make tokens. A token is a credential: it is printed or, with --out-file, written to
a file that only you can read, without a line feed.

--operator makes a token of the operator, which is good on operator.sock alone. --opaque prints a secret in the form
of a UUID, which stands for that token: clients such as 'nomad acl token self' take nothing else. 'taskapi token
revoke' takes both.

Kinds marked "foreign" are refused when the key of another issuer (--jwks) has signed them. Here the ring's key signs
them, which may vouch for any issuer.`,
		Example: `  taskapi token mint --task server --out-file token.jwt
  taskapi token mint --task server --bad alg-hs256
  taskapi token mint --operator --opaque --ttl 8h
  taskapi token mint --list`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kind, err := f.kind()
			if err != nil {
				return err
			}
			if f.list {
				return f.printKinds(w)
			}
			m, err := f.minter(cmd)
			if err != nil {
				return err
			}
			switch {
			case f.all:
				return m.mintAll(w)
			case kind != nil:
				token, err := kind.Token(m.good)
				if err != nil {
					return base.Usagef("--bad %s: %w", kind.Name, err)
				}
				return f.write(w, token)
			}
			return m.mintGood(w)
		},
	}
	f.Add(cmd)
	flags := cmd.Flags()
	f.at.AddNames(cmd, w, base.Sought{Tasks: base.OneTask})
	flags.StringArrayVar(&f.audience, "audience", nil,
		"`AUDIENCE` that the token names (default the allocation's); may be repeated")
	flags.DurationVar(&f.ttl, "ttl", time.Hour, "how long the token is good")
	flags.StringArrayVar(&f.claims, "claim", nil,
		"set the claim `NAME=VALUE`, JSON or else a text; may be repeated")
	flags.StringVar(&f.bad, "bad", "", "`NAME` of the token's fault: see --list")
	flags.BoolVar(&f.list, "list", false, "list the kinds of bad tokens, each with the answer of the API")
	flags.BoolVar(&f.all, "all", false, "make one of each kind, and print a line of JSON for each")
	flags.BoolVar(&f.operator, "operator", false, "make a token of the operator, for operator.sock")
	flags.BoolVar(&f.opaque, "opaque", false,
		"with --operator: print a secret in the form of a UUID, which stands for the token")
	flags.StringVar(&f.out, "out-file", "", "`FILE` for the token, with mode 0600, instead of standard output")
	base.AddOutput(cmd, &f.output)
	_ = cmd.RegisterFlagCompletionFunc("bad", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names := slice.Map(badtokens.All(), func(k badtokens.Kind) string { return k.Name + "\t" + k.Wrong })
		return names, cobra.ShellCompDirectiveNoFileComp
	}) // the flag has just been added
	return cmd
}

// kind returns the kind of bad token that the flags name, nil for a good one.
func (f *mintFlags) kind() (*badtokens.Kind, error) {
	switch {
	case f.bad != "" && (f.all || f.list), f.all && f.list:
		return nil, base.Usagef("give one of --bad, --all and --list")
	case f.all && (f.out != "" || f.output.Template != ""):
		return nil, base.Usagef("--all prints lines of JSON to standard output: leave --out-file and --template out")
	case f.opaque && !f.operator:
		return nil, base.Usagef("--opaque is for a token of the operator's: add --operator")
	case f.operator && (f.bad != "" || f.all || f.list || f.at.GivesTask()):
		return nil, base.Usagef("--operator makes a good token of no task: leave out --task, --bad, --all and --list")
	case f.opaque && len(f.claims) > 0:
		return nil, base.Usagef("--opaque stands for a token without claims of yours: leave out --claim")
	case f.bad == "":
		return nil, nil
	}
	kind, ok := badtokens.Find(f.bad)
	if !ok {
		return nil, base.Usagef("--bad %q: there is no such kind; 'taskapi token mint --list' shows them", f.bad)
	}
	return &kind, nil
}

// kindLine is a kind as --list --json and --all print it.
type kindLine struct {
	Name    string
	Class   string
	Wrong   string
	Status  int    // of this API's answer
	Reason  string // of the refusal, as in the audit log
	Strict  bool   // a verifier that is less strict may accept it
	Foreign bool   // refused when another issuer's key has signed it

	InHeader *bool   `json:",omitempty"` // a header can carry the token unchanged
	Token    *string `json:",omitempty"` // base64 of JSON strings can't hold every byte: see TokenBytes
	// TokenBytes is the token, in base64, where it is not UTF-8.
	TokenBytes []byte `json:",omitempty"`
}

func lineOf(k badtokens.Kind) kindLine {
	return kindLine{
		Name: k.Name, Class: string(k.Class), Wrong: k.Wrong, Status: k.Status(), Reason: k.Reason.String(),
		Strict: k.Strict, Foreign: k.Foreign,
	}
}

func (f *mintFlags) printKinds(w base.Environment) error {
	lines, table := []kindLine{}, output.Table{Colors: w.Colors()}
	table.Header("Name", "Class", "Answer", "What is wrong")
	for _, k := range badtokens.All() {
		wrong := k.Wrong
		switch {
		case k.Strict && k.Foreign:
			wrong += " (strict, foreign)"
		case k.Strict:
			wrong += " (strict)"
		case k.Foreign:
			wrong += " (foreign)"
		}
		l := lineOf(k)
		lines = append(lines, l)
		table.Row(l.Name, l.Class, fmt.Sprintf("%d %s", l.Status, l.Reason), wrong)
	}
	return f.output.Table(w, lines, &table)
}

type minter struct {
	flags         *mintFlags
	layout        base.Layout
	good          badtokens.Good
	authenticator agent.OfflineAuthenticator
}

// minter finds the task, and opens the key ring that signs the task's tokens.
func (f *mintFlags) minter(cmd *cobra.Command) (*minter, error) {
	extra, err := extraClaims(f.claims)
	if err != nil {
		return nil, err
	}
	if f.ttl < time.Second {
		return nil, base.Usagef("--ttl is %v: give at least 1s; --bad expired makes a token that is not good any more", f.ttl)
	}
	if slices.Contains(f.audience, "") {
		return nil, base.Usagef("--audience is empty: give the name of whom the token is for")
	}
	f.at.DataDir = f.DataDir
	name, role := identity.DefaultName, identity.RoleTask
	if f.operator {
		f.at.Sought = base.ToChange
		name, role = string(identity.RoleOperator), identity.RoleOperator
	}
	t, err := f.at.Find(cmd.Context(), nil)
	if err != nil {
		return nil, err
	}
	authenticator, err := authenticatorOf(t.Layout, t.ID)
	if err != nil {
		return nil, err
	}
	if authenticator.Allocation == nil {
		return nil, t.Layout.ErrNoState(t.ID)
	}
	ring, err := t.Layout.OpenKeyring(cmp.Or(f.SealKey, authenticator.Settings.SealKey))
	if err != nil {
		return nil, err
	}
	authenticator.Keys = ring
	now, a := time.Now(), authenticator.Allocation
	otherKey := "" // one that does not sign any more
	if keys := ring.List(); len(keys) > 1 {
		otherKey = keys[1].ID
	}
	audience := f.audience
	if len(audience) == 0 {
		audience = authenticator.Settings.Audience()
	}
	return &minter{f, t.Layout, badtokens.Good{
		Key: badtokens.NewKey(ring.Signer()),
		Now: now,
		Claims: identity.Claims{
			ID: uuid.NewString(), Issuer: authenticator.Settings.Issuer,
			Subject:  identity.Subject(a.Region, a.Namespace, a.JobID, a.TaskGroup, t.Task, name),
			Audience: audience, IssuedAt: now.Unix(), NotBefore: now.Unix(), ExpiresAt: now.Add(f.ttl).Unix(),
			Namespace: a.Namespace, JobID: a.JobID, AllocationID: t.ID, Task: t.Task, Role: role, Life: a.Life,
		},
		Extra:      extra,
		OtherKeyID: otherKey,
	}, authenticator}, nil
}

// extraClaims reads the values of --claim.
func extraClaims(given []string) (map[string]any, error) {
	extra := map[string]any{}
	for _, claim := range given {
		name, text, ok := strings.Cut(claim, "=")
		if !ok || name == "" {
			return nil, base.Usagef("--claim %q: want NAME=VALUE", claim)
		}
		if json.Valid([]byte(text)) {
			extra[name] = json.RawMessage(text)
		} else {
			extra[name] = text
		}
	}
	return extra, nil
}

// mintGood prints a good token, or the secret that stands for it. It warns if a given claim makes the token a bad one.
func (m *minter) mintGood(w base.Environment) error {
	token := m.good.Token()
	why, words, err := m.authenticator.Evaluate(token, m.good.Claims.Task)
	if err != nil {
		return err
	}
	if why != auth.NotRefused && m.flags.opaque {
		return base.Usagef("the allocation's API would refuse the token behind the secret: %s%s", why, detail(words))
	}
	if why != auth.NotRefused {
		w.Warnf("warning: the allocation's API refuses this token: %s%s", why, detail(words))
	}
	if m.flags.opaque {
		if token, err = m.secret(w, token); err != nil {
			return err
		}
	}
	return m.flags.write(w, token)
}

// secret keeps a token with its allocation, and returns the secret that stands for it.
func (m *minter) secret(w base.Environment, token string) (secret string, err error) {
	claims := &m.good.Claims
	err = m.layout.Audited(w, "token mint --operator --opaque: jti "+claims.ID, func() (string, error) {
		dir, expires := m.layout.OperatorSecrets(claims.AllocationID), time.Unix(claims.ExpiresAt, 0)
		secret, err = opaque.Mint(dir, token, expires, m.good.Now)
		return "", err
	})
	return secret, err
}

// detail returns the error of package identity about a refused token, as part of a sentence.
func detail(words error) string {
	if e, ok := errors.AsType[*identity.Error](words); ok {
		return ": " + e.Detail
	}
	return ""
}

// write writes a token to the file that was given, or to standard output.
func (f *mintFlags) write(w base.Environment, token string) error {
	if f.out == "" {
		return w.Printf("%s\n", token)
	}
	if info, err := os.Lstat(f.out); err == nil && !info.Mode().IsRegular() {
		return base.Usagef("--out-file %s is no regular file: give another name", f.out)
	}
	if err := privatefile.Write(f.out, []byte(token)); err != nil {
		return base.Usagef("--out-file %s: %w", f.out, agent.UnwrapPath(err))
	}
	return nil
}

// mintAll prints a line of JSON for each kind, with a token unless the kind can't be made from this task's token.
func (m *minter) mintAll(w base.Environment) error {
	encoder := json.NewEncoder(w.Stdout)
	encoder.SetEscapeHTML(false)
	for _, k := range badtokens.All() {
		line := lineOf(k)
		token, err := k.Token(m.good)
		if err != nil && !errors.Is(err, badtokens.ErrNotApplicable) {
			return err
		}
		if err == nil {
			sendable := badtokens.InHeader(token)
			line.InHeader = &sendable
			if token == strings.ToValidUTF8(token, "") {
				line.Token = &token
			} else {
				line.TokenBytes = []byte(token)
			}
		}
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

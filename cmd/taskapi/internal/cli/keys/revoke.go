package keys

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/tokensync"
	"taskapi/identity"
	"taskapi/identity/revocation"
)

type revokeFlags struct {
	dataDir                   string
	jti, task, alloc, instant string
	list                      bool            // revoke nothing, and list what is revoked
	of                        revocation.Rule // whose tokens are meant, as far as that is known
	output                    base.OutputFlags
}

func tokenRevoke(w base.Environment) *cobra.Command {
	f := &revokeFlags{}
	cmd := &cobra.Command{
		Use:        "revoke [flags] [FILE|-]",
		SuggestFor: []string{"delete", "revoked", "revocations"},
		Short:      "Refuse tokens before they expire",
		Long: `Makes every running allocation of the data directory refuse tokens before they expire.

Give one token, or the operator's secret, in FILE or on standard input ("-"), or by its ID with --jti. Or revoke all
tokens that were issued before a time, now unless you give --before: those of a --task, of an --alloc, of both, or
all.

The tokens are refused from the next request on. Their open streams and waiting requests end within two seconds. A
revocation is saved, and forgotten when its tokens have expired.

A running task gets a new token in its file, and its change_mode is honoured. A token in its environment stays refused
until the task is restarted. To lock out a task itself, stop it, or take its capabilities away with a policy.`,
		Example: `  taskapi token revoke stolen.jwt
  taskapi token revoke --task server
  taskapi token revoke --before 2026-11-22T12:00:00Z
  taskapi token revoke --list`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.list {
				if len(args) > 0 || f.jti+f.task+f.alloc+f.instant != "" {
					return base.Usagef("--list revokes nothing: leave out the other flags and FILE")
				}
				return f.printRevoked(w)
			}
			rule, l, err := f.rule(cmd, w, args)
			if err != nil {
				return err
			}
			list, err := revocation.Open(revocation.Config{Dir: l.Revocations()})
			if err != nil {
				return err
			}
			defer list.Close()
			err = l.Audited(w, "token revoke: "+rule.String(), func() (_ string, err error) {
				rule, err = list.Add(rule)
				return "", err
			})
			if errors.Is(err, revocation.ErrInvalid) {
				return base.Usage(err)
			}
			if err != nil {
				return err
			}
			if err := publish(cmd.Context(), l, list); err != nil {
				w.Warnf("warning: %v; a taskapi that runs here tells them as soon as it can", err)
			}
			if missing := unknownTo(cmd.Context(), l, f.of); missing != "" {
				w.Warnf("warning: %s; it is revoked all the same", missing)
			}
			return f.output.Print(w, rule, nil, func() error { return w.Printf("%s: refused from now on\n", rule) })
		},
	}
	base.AddDataDir(cmd, &f.dataDir)
	cmd.Flags().StringVar(&f.jti, "jti", "", "`ID` of the token, as the audit log has it")
	cmd.Flags().StringVar(&f.task, "task", "", "tokens of this `TASK`")
	cmd.Flags().StringVar(&f.alloc, "alloc", "",
		"tokens of this allocation, as `ALLOC` of other commands, or the ID of one that is gone")
	cmd.Flags().StringVar(&f.instant, "before", "",
		"tokens issued before this `TIME`, such as 2026-11-22T12:00:00Z, or now")
	cmd.Flags().BoolVar(&f.list, "list", false, "revoke nothing, and list what is revoked")
	base.AddOutput(cmd, &f.output)
	return cmd
}

// publish tells the other machines of a cluster what is revoked. Without a cluster it does nothing.
func publish(ctx context.Context, l base.Layout, list *revocation.List) error {
	store, several := l.OpenShared()
	defer store.Close()
	if !several {
		return nil
	}
	return tokensync.Publish(ctx, store, list)
}

// rule returns the rule of the revocation, and its data directory.
func (f *revokeFlags) rule(cmd *cobra.Command, w base.Environment, args []string) (r revocation.Rule, l base.Layout,
	err error) {
	for _, name := range []string{"jti", "task", "alloc", "before"} {
		// Without this check, more would be revoked than was meant.
		if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return r, l, base.Usagef("--%s is empty: give it a value, or leave it out", name)
		}
	}
	byTime := f.task != "" || f.alloc != "" || f.instant != ""
	switch {
	case len(args) == 0 && f.jti == "" && !byTime:
		return r, l, base.Usagef("which tokens? Give a file with one, '-', --jti, --task, --alloc or --before")
	case len(args) > 0 && (f.jti != "" || byTime), f.jti != "" && byTime:
		return r, l, base.Usagef("a token, or a --jti, is revoked alone: leave out the other flags")
	}
	if l, err = base.WithKeyring(f.dataDir, w); err != nil {
		return r, l, err
	}
	switch {
	case len(args) > 0:
		r, f.of, err = revocationOf(l, w, args)
	case f.jti != "":
		r.TokenID = f.jti
	default:
		r.Task = f.task
		if r.Before, err = instant(f.instant, time.Now()); err != nil || f.alloc == "" {
			break
		}
		found, missing := base.Find(cmd.Context(), w, f.dataDir, []string{f.alloc}, base.ToRead)
		switch {
		case missing == nil:
			r.AllocationID, l = found.ID, found.Layout
		case datadir.IsID(f.alloc): // a removed allocation may have left tokens
			r.AllocationID = f.alloc
		default:
			err = missing
		}
	}
	if r.TokenID == "" {
		f.of = r
	}
	return r, l, err
}

// revocationOf returns the rule for a token, or for the token behind a secret, and the task that a task's token names.
// The rule lasts until the token expires.
func revocationOf(l base.Layout, w base.Environment, args []string) (r, of revocation.Rule, err error) {
	token, err := readToken(w, args)
	if err == nil {
		token, err = standsFor(l, token)
	}
	if err != nil {
		return r, of, err
	}
	read, err := identity.Check(token)
	if err != nil {
		return r, of, base.Usagef("%w: it is accepted nowhere, and needs no revocation", err)
	}
	if read.Claims.ID == "" {
		return r, of, base.Usagef("the token has no jti: revoke by --task and --before")
	}
	if read.Claims.Task != "" {
		of = revocation.Rule{AllocationID: read.Claims.AllocationID, Task: read.Claims.Task}
	}
	return revocation.Rule{TokenID: read.Claims.ID, Until: read.Claims.ExpiresAt}, of, nil
}

// instant reads a time. Empty and "now" mean the end of this second, so tokens that were issued in it are included.
func instant(text string, now time.Time) (int64, error) {
	if text == "" || text == "now" {
		return now.Unix() + 1, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.Unix() <= 0 {
		return 0, base.Usagef("--before %q: give a time such as %s, or now", text, now.UTC().Format(time.RFC3339))
	}
	if at.After(now) {
		return 0, base.Usagef("--before %s lies ahead, and tokens that are issued until then would be refused, "+
			"too: give now, or an earlier time", text)
	}
	return at.Unix(), nil
}

// unknownTo names the allocation or task of a rule that its data directory does not have, as after a typing error. It
// is empty if the directory has them, or if that can't be known.
func unknownTo(ctx context.Context, l base.Layout, rule revocation.Rule) string {
	f := &base.Finder{Places: []base.Layout{l}}
	var args []string
	if rule.AllocationID != "" {
		args = []string{rule.AllocationID}
	}
	if rule.AllocationID == "" && rule.Task == "" || f.Look(ctx, args) != nil {
		return ""
	}
	if rule.AllocationID != "" && len(f.Known) == 0 {
		return fmt.Sprintf("there is no allocation %s in %s", rule.AllocationID, l.Dir)
	}
	var names []string
	for _, k := range f.Known {
		if k.Alloc == nil {
			return ""
		}
		names = append(names, base.TaskNames(k.Alloc)...)
	}
	switch {
	case rule.Task == "" || slices.Contains(names, rule.Task):
		return ""
	case len(names) == 0:
		return fmt.Sprintf("there is no task %q, and no allocation, in %s", rule.Task, l.Dir)
	case rule.AllocationID != "":
		return fmt.Sprintf("allocation %s has no task %q: it has %s", output.ShortID(rule.AllocationID), rule.Task,
			someOf(names))
	}
	return fmt.Sprintf("no allocation in %s has a task %q: there are %s", l.Dir, rule.Task, someOf(names))
}

// someOf lists a bounded number of names, each once.
func someOf(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	if more := len(names) - base.MaxCandidates; more > 0 {
		names = append(names[:base.MaxCandidates], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func (f *revokeFlags) printRevoked(w base.Environment) error {
	l, err := base.WithKeyring(f.dataDir, w)
	if err != nil {
		return err
	}
	rules, table := []revocation.Rule{}, output.Table{Colors: w.Colors()}
	list, err := openRevocations(l)
	switch {
	case err == nil:
		rules = append(rules, list.Rules()...)
		defer list.Close()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	table.Header("Revoked", "Created", "Until")
	for _, r := range rules {
		table.Row(r.String(), output.Date(time.Unix(r.CreatedAt, 0)), output.Date(time.Unix(r.Until, 0)))
	}
	return f.output.Table(w, rules, &table)
}

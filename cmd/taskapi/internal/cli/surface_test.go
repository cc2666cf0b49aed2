package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/cli/base"
)

// TestFewCommands: the groups before the last have at most 24 of them.
func TestFewCommands(t *testing.T) {
	n := 0
	for _, cmd := range everyCommand()[0].Commands() {
		if cmd.GroupID != "" && cmd.GroupID != "More" {
			n++
		}
	}
	if n > 24 {
		t.Errorf("%d commands: put one of them into the last group", n)
	}
}

// ofEvery are the flags that every command has.
var ofEvery = []string{"help", "data-dir"}

// TestRunHasFewFlags: at most 19 beside those of every command. One is --all: what it runs, count allocations of each
// group, is in the job file, but a job that has run one allocation must go on to do so. --payload and --meta are
// arguments of one dispatch, as of 'nomad job dispatch', and so no settings. --exit-code-from is docker compose's, and
// means one run, too. --standby is hidden: only who has read docs/fleet.md knows what it promises. It is no setting,
// because each of the machines must be given it on purpose.
func TestRunHasFewFlags(t *testing.T) {
	var flags []string
	for _, f := range everyFlag() {
		if slices.Contains(f.commands, "run") && !slices.Contains(ofEvery, f.name) {
			flags = append(flags, f.name)
		}
	}
	if len(flags) > 19 {
		t.Errorf("run has %d flags: make one of them a setting, which -o sets: %v", len(flags), flags)
	}
}

// devHonours says what dev does with the flags that run has, too.
var devHonours = map[string]string{
	"config":        "reads the settings",
	"isolate-users": "runs the command as a user of its own",
	"option":        "sets a setting",
	"policy":        "gives the command's task these rights",
	"verbose":       "logs each step",
}

// TestDevIgnoresNoFlag: a flag of run is a flag of dev only if it does something there.
func TestDevIgnoresNoFlag(t *testing.T) {
	root := newRoot(base.Environment{Version: "1"})
	run, _, _ := root.Find([]string{"run"})
	dev, _, _ := root.Find([]string{"dev"})
	dev.Flags().VisitAll(func(f *pflag.Flag) {
		if run.Flags().Lookup(f.Name) != nil && devHonours[f.Name] == "" && !slices.Contains(ofEvery, f.Name) {
			t.Errorf("dev takes --%s as run does: say above what it does with it, or leave it out", f.Name)
		}
	})
}

// sameWord says for each flag whose usage differs from command to command how its name means one thing all the same.
var sameWord = map[string]string{
	"alloc":     "an allocation; token revoke also takes the ID of one that is gone",
	"all":       "all that the command could be given one by one",
	"audience":  "whom a token is for: expected, or issued",
	"data-dir":  "the data directory; dev and test make one",
	"detach":    "the work goes on when the command has returned",
	"follow":    "print more as it comes",
	"force":     "do what was refused with a warning",
	"group":     "a task group of the job file; validate checks all without it",
	"issuer":    "the issuer (iss) of tokens",
	"json":      "print JSON; lines of it where the output has no end",
	"listen":    "an address to listen on; the agent's takes TLS alone",
	"list":      "show what there is, and do nothing",
	"namespace": "Nomad's namespace, of what the command is about",
	"replace":   "new processes: a graceful stop, and another run",
	"task":      "a task's name",
	"template":  "a template; logs has -t for --time, as others' logs commands do",
	"ttl":       "a lifetime, of what the command makes",
	"wait":      "wait until the allocation is in that state; for run, in the background",
	"verbose":   "print more; for status, as in Nomad, whole IDs",
}

// TestFlagsHaveOneMeaning: a flag's name has the same usage in each command, or a reason above, and one short form.
func TestFlagsHaveOneMeaning(t *testing.T) {
	first, usages, shorts := map[string]*flagOf{}, map[string]int{}, map[string]string{}
	for _, f := range everyFlag() {
		shorts[f.name] = cmp.Or(f.short, shorts[f.name])
		if usages[f.name]++; usages[f.name] == 1 {
			first[f.name] = f
			continue
		}
		before := first[f.name]
		if f.short != before.short && f.name != "template" {
			t.Errorf("--%s has the short form %q in %v, and %q in %v", f.name, f.short, f.commands, before.short,
				before.commands)
		}
		if sameWord[f.name] == "" {
			t.Errorf("--%s means %q in %v, and %q in %v", f.name, f.usage, f.commands, before.usage, before.commands)
		}
	}
	for name := range sameWord {
		if usages[name] < 2 {
			t.Errorf("--%s has one usage, and needs no reason", name)
		}
	}
	for name, short := range map[string]string{"detach": "d", "follow": "f", "template": "t", "verbose": "v"} {
		if shorts[name] != short {
			t.Errorf("-%s is not the short form of --%s", short, name)
		}
	}
}

// errorOf returns what the program prints for arguments that it refuses.
func errorOf(t *testing.T, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	w := base.Environment{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &errs, Version: "1"}
	if code := Run(t.Context(), args, w); code == base.ExitOK || code == base.ExitFailed {
		t.Errorf("'taskapi %s': exit code %d", strings.Join(args, " "), code)
	}
	return errs.String()
}

// TestWordsOfOtherTools: a word in SuggestFor is no command, belongs to one command, and is refused with that command's
// help. So is a flag, with the flag that a command has.
func TestWordsOfOtherTools(t *testing.T) {
	for _, parent := range everyCommand() {
		for _, cmd := range parent.Commands() {
			for _, word := range cmd.SuggestFor {
				args := append(strings.Fields(parent.CommandPath())[1:], word, "x")
				want := fmt.Sprintf("taskapi: unknown command %q; see '%s --help'\n", word, cmd.CommandPath())
				if got := errorOf(t, args...); got != want {
					t.Errorf("%q prints %q, want %q", args, got, want)
				}
			}
		}
	}
	for args, want := range map[string]string{"ps -o json": "json", "status --format x": "template", "logs -c x": "task",
		"events -w": "follow", "proxy -port 1": "listen", "run --detatch f": "detach"} {
		if got := errorOf(t, strings.Fields(args)...); !strings.HasSuffix(got, "; did you mean --"+want+"?\n") {
			t.Errorf("'taskapi %s' prints %q, want --%s", args, got, want)
		}
	}
}

// TestNoSlipIsOfferedAnEnd: whatever one letter of a command is mistyped, no command is suggested that ends or removes
// something.
func TestNoSlipIsOfferedAnEnd(t *testing.T) {
	var parents func(cmd *cobra.Command)
	parents = func(parent *cobra.Command) {
		for _, cmd := range parent.Commands() {
			name := cmd.Name()
			for i := range name {
				for _, slip := range []string{name[:i] + name[i+1:], name[:i] + "x" + name[i:], name[:i] + "x" + name[i+1:]} {
					said := base.UnknownCommand(parent, slip).Error()
					for _, other := range parent.Commands() {
						_, offered, _ := strings.Cut(strings.TrimSuffix(said, "?"), "did you mean ")
						if other.Annotations["destructive"] != "" && slices.Contains(strings.Fields(offered), other.Name()) {
							t.Errorf("%q is answered: %s", slip, said)
						}
					}
				}
			}
			parents(cmd)
		}
	}
	parents(newRoot(base.Environment{Version: "1"}))
}

// TestNomadsNounIsUnderstood before a command, and nowhere else.
func TestNomadsNounIsUnderstood(t *testing.T) {
	for args, want := range map[string]string{
		"job run":           "JOBFILE is missing: taskapi run ",
		"alloc logs a b c":  `unexpected argument "c"`,
		"job frobnicate x":  `unknown command "frobnicate"`,
		"alloc alloc run":   `unknown command "alloc"`,
		"status job alloc":  `unexpected argument "alloc"`,
		"alloc -json":       `unknown command "alloc"`,
		"job delete my-job": "see 'taskapi stop --help'",
	} {
		if got := errorOf(t, strings.Fields(args)...); !strings.Contains(got, want) {
			t.Errorf("'taskapi %s' prints %q, want %q", args, got, want)
		}
	}
}

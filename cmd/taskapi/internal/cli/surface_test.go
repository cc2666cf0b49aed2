package cli

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/cli/base"
)

// TestFewCommands: the help lists at most 24 of them.
func TestFewCommands(t *testing.T) {
	n := 0
	for _, g := range groups[:len(groups)-1] {
		n += len(g.commands)
	}
	if n > 24 {
		t.Errorf("'taskapi help' lists %d commands: put one of them into the last group", n)
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
	root := newRoot(base.Environment{Version: "1"}, "")
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
	first, usages := map[string]*flagOf{}, map[string]int{}
	for _, f := range everyFlag() {
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
		if first[name] == nil || first[name].short != short {
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

// TestHints: each word of the table is no command or flag, and is refused with its hint. A user can type each command
// line in a hint. A hint names a command that ends or removes something only in two cases: after "nothing was done", or
// for a word with the same meaning.
func TestHints(t *testing.T) {
	root := newRoot(base.Environment{Version: "1"}, "")
	quoted := regexp.MustCompile(`'taskapi ([^']*)'`)
	for _, h := range base.Hints {
		for word := range strings.FieldsSeq(h.Words) {
			args := strings.Split(word, ",")
			cmd, rest, _ := root.Find(args)
			if len(rest) == 0 || cmd.Flags().Lookup(strings.TrimPrefix(rest[0], "--")) != nil {
				t.Errorf("'taskapi %s' does something: it needs no hint", strings.Join(args, " "))
				continue
			}
			if got := errorOf(t, args...); !strings.HasPrefix(got, "taskapi: unknown ") || !strings.Contains(got, h.Hint) {
				t.Errorf("'taskapi %s' prints %q, want the hint %q", strings.Join(args, " "), got, h.Hint)
			}
		}
		for _, line := range quoted.FindAllStringSubmatch(h.Hint, -1) {
			words := strings.NewReplacer("[", "", "]", "", "-- /bin/sh", "").Replace(line[1])
			cmd, rest, err := root.Find(strings.Fields(words))
			if err != nil || !cmd.HasParent() || cmd.ParseFlags(rest) != nil {
				t.Errorf("the hint %q quotes what can't be typed: %q", h.Hint, line[0])
				continue
			}
			explains := strings.HasPrefix(h.Hint, "nothing was done: ") || h.Words == "stop,--force stop,--kill"
			lists := slices.Contains(rest, "--list")
			if cmd.Annotations["destructive"] != "" && !explains && !lists {
				t.Errorf("for %q a command is offered that ends or removes something: %q", h.Words, line[0])
			}
		}
	}
}

// TestFlagHints: a command that has what a hint needs refuses the flag with that hint, another command without.
func TestFlagHints(t *testing.T) {
	with := map[string]string{"--json": "ps", "--template": "status", "--task": "logs", "JOBFILE": "validate",
		"--alloc": "checks", "--follow": "events", "--data-dir": "stop", "": "version"}
	for _, h := range base.FlagHints {
		for name := range strings.FieldsSeq(h.Names) {
			if got := errorOf(t, with[h.Has], "--"+name); !strings.HasSuffix(got, "; "+h.Hint+"\n") {
				t.Errorf("'taskapi %s --%s' prints %q, want the hint %q", with[h.Has], name, got, h.Hint)
			}
			if got := errorOf(t, "completion", "bash", "--"+name); h.Has != "" && strings.Contains(got, h.Hint) {
				t.Errorf("'taskapi completion bash --%s' prints %q", name, got)
			}
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
						if other.Annotations["destructive"] != "" && strings.Contains(said, fmt.Sprintf("mean %q", other.Name())) {
							t.Errorf("%q is answered: %s", slip, said)
						}
					}
				}
			}
			parents(cmd)
		}
	}
	parents(newRoot(base.Environment{Version: "1"}, ""))
}

// TestNomadsNounIsUnderstood before a command, and nowhere else.
func TestNomadsNounIsUnderstood(t *testing.T) {
	for args, want := range map[string]string{
		"job run":           "JOBFILE is missing: taskapi run ",
		"alloc logs a b c":  `unexpected "c"`,
		"job frobnicate x":  `unknown command "frobnicate"`,
		"alloc alloc run":   `unknown command "alloc"`,
		"status job alloc":  "want one ALLOC",
		"alloc -json":       `unknown command "alloc"`,
		"job delete my-job": "nothing was done",
	} {
		if got := errorOf(t, strings.Fields(args)...); !strings.Contains(got, want) {
			t.Errorf("'taskapi %s' prints %q, want %q", args, got, want)
		}
	}
}

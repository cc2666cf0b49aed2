package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/same"
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

// TestRunHasFewFlags: at most 19 beside those of every command. What else can be said of a run is a setting.
func TestRunHasFewFlags(t *testing.T) {
	var flags []string
	for _, f := range everyFlag() {
		if slices.Contains(f.commands, "run") && f.name != "data-dir" {
			flags = append(flags, f.name)
		}
	}
	if len(flags) > 19 {
		t.Errorf("run has %d flags: make one of them a setting, which -o sets: %v", len(flags), flags)
	}
}

// TestFlagsHaveOneShortForm in all commands.
func TestFlagsHaveOneShortForm(t *testing.T) {
	shorts := map[string]string{"detach": "d", "follow": "f", "template": "t", "verbose": "v"}
	for _, f := range everyFlag() {
		if f.name == "template" && slices.Contains(f.commands, "logs") {
			continue // -t is --time there, as in others' logs commands
		}
		if short, known := shorts[f.name]; known && f.short != short {
			t.Errorf("--%s has the short form %q in %v, and %q elsewhere", f.name, f.short, f.commands, short)
		}
		shorts[f.name] = f.short
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
				same.As(t, want, errorOf(t, args...), args, " prints")
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

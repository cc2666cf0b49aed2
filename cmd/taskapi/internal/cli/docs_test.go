package cli

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/examples/doctest"
	"taskapi/internal/must"
)

// everyCommand returns the commands in the order of the help, each before those below it, without what is hidden.
func everyCommand() []*cobra.Command {
	root := newRoot(base.Environment{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Version: "1"})
	all := []*cobra.Command{root}
	var add func(of []*cobra.Command)
	add = func(of []*cobra.Command) {
		for _, cmd := range of {
			if cmd.Hidden || cmd.IsAdditionalHelpTopicCommand() {
				continue
			}
			all = append(all, cmd)
			add(cmd.Commands())
		}
	}
	for _, g := range root.Groups() {
		add(slices.DeleteFunc(slices.Clone(root.Commands()), func(cmd *cobra.Command) bool { return cmd.GroupID != g.ID }))
	}
	return all
}

// TestEveryCommandHasAnExample, and each can be typed: there is such a command, and it has the flags.
func TestEveryCommandHasAnExample(t *testing.T) {
	for _, cmd := range everyCommand() {
		if cmd.Example == "" && cmd.Parent().Name() != "completion" {
			t.Errorf("'%s --help' has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			line, isIndented := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "  ")
			_, line, ofUs := strings.Cut(line, "taskapi ")
			if !isIndented || !ofUs {
				t.Errorf("%s: the example %q is not indented by two, or not of taskapi", cmd.CommandPath(), line)
				continue
			}
			named, rest, err := cmd.Root().Find(doubleDashes(cmd.Root(), shellWords(strings.TrimSuffix(line, ")"))))
			if err != nil || !named.HasParent() {
				t.Errorf("%s: the example %q names no command: %v", cmd.CommandPath(), line, err)
				continue
			}
			if err := named.ParseFlags(rest); err != nil {
				t.Errorf("%s: the example %q: %v", cmd.CommandPath(), line, err)
			}
		}
	}
}

// TestHelpFitsTheScreen: no line of a help text is wider than 80 columns, except a command's name and purpose, how it
// is used, and a line of an example.
func TestHelpFitsTheScreen(t *testing.T) {
	for _, cmd := range everyCommand() {
		var out bytes.Buffer
		cmd.Root().SetOut(&out)
		if err := cmd.Help(); err != nil || out.Len() == 0 {
			t.Errorf("'%s --help' prints nothing: %v", cmd.CommandPath(), err)
		}
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			mayBeWide := ofLibrary(cmd) || strings.Contains(cmd.Example, line) || strings.HasSuffix(line, cmd.UseLine())
			for _, sub := range cmd.Commands() {
				mayBeWide = mayBeWide || strings.HasSuffix(line, sub.Short)
			}
			if utf8.RuneCountInString(line) > 80 && !mayBeWide {
				t.Errorf("'%s --help' has a line that is wider than 80 columns: %s", cmd.CommandPath(), line)
			}
		}
	}
}

// ofLibrary reports whether the library makes a command.
func ofLibrary(cmd *cobra.Command) bool {
	return cmd.Name() == "help" || strings.HasPrefix(cmd.CommandPath(), "taskapi completion")
}

// TestSentencesAreApart: no sentence of a help text begins right behind the one before.
func TestSentencesAreApart(t *testing.T) {
	joined := regexp.MustCompile(`\b[a-z]+[.:;][A-Z]\w*`)
	for _, cmd := range everyCommand() {
		if found := joined.FindString(cmd.Long); found != "" {
			t.Errorf("'%s --help' has no blank in %q", cmd.CommandPath(), found)
		}
	}
}

// TestFlagsHaveNamesForTheirValues: one in capital letters, or no name for a duration.
func TestFlagsHaveNamesForTheirValues(t *testing.T) {
	for _, cmd := range everyCommand() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			name, usage := pflag.UnquoteUsage(f)
			if name != strings.ToUpper(name) && name != "duration" {
				t.Errorf("'%s --help': --%s %s: give the value a name in capital letters: %s", cmd.CommandPath(), f.Name, name,
					usage)
			}
		})
	}
}

// shellWords splits a command line at spaces outside of single quotes, and drops the quotes.
func shellWords(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

// TestCommandsAreDocumented holds docs/reference.md to the commands, their flags and examples.
func TestCommandsAreDocumented(t *testing.T) {
	var index, want strings.Builder
	index.WriteString("| group | command | does |\n|---|---|---|\n")
	for _, cmd := range everyCommand() {
		if !cmd.HasParent() || ofLibrary(cmd) {
			continue
		}
		name := strings.TrimPrefix(cmd.CommandPath(), "taskapi ")
		top := cmd
		for top.Parent().HasParent() {
			top = top.Parent()
		}
		fmt.Fprintf(&index, "| %s | [`%s`](#%s) | %s |\n", top.GroupID, name, strings.ReplaceAll(name, " ", "-"), cmd.Short)
		fmt.Fprintf(&want, "\n### %s\n\n    %s\n\n%s\n", name, cmd.UseLine(), markdown(cmd.Long))
		fmt.Fprintf(&want, "\n```sh\n%s\n```\n", unindented(cmd.Example))
		if text := flagsOf(cmd); text != "" {
			fmt.Fprintf(&want, "\n```\n%s```\n", text)
		}
	}
	index.WriteString("\n| flag | means | of |\n|---|---|---|\n")
	for _, f := range everyFlag() {
		name := "`--" + f.name + "`"
		if f.short != "" {
			name = "`-" + f.short + "`, " + name
		}
		usage := strings.ReplaceAll(f.usage, "|", `\|`)
		fmt.Fprintf(&index, "| %s | %s | %s |\n", name, usage, strings.Join(f.commands, ", "))
	}
	doctest.Table(t, "../../../../docs/reference.md", "cmd/taskapi/internal/cli", index.String()+want.String()+"\n")
}

// TestGuideNamesEveryCommand: docs/commands.md has a row for each group, with its commands.
func TestGuideNamesEveryCommand(t *testing.T) {
	guide := must.Read(t, "../../../../docs/commands.md")
	for _, cmd := range everyCommand()[0].Commands() {
		_, row, _ := strings.Cut(string(guide), "\n| "+cmd.GroupID+" |")
		row, _, _ = strings.Cut(row, "\n")
		if cmd.GroupID != "" && !strings.Contains(row, "`"+cmd.Name()+"`") {
			t.Errorf("the row of %q in docs/commands.md lacks `%s`", cmd.GroupID, cmd.Name())
		}
	}
}

// flagOf is a flag with the commands in which it has this usage.
type flagOf struct {
	name, short, usage string
	commands           []string
}

// everyFlag returns the flags of all commands by their names.
func everyFlag() (all []*flagOf) {
	for _, cmd := range everyCommand() {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" || !cmd.HasParent() || ofLibrary(cmd) {
				return
			}
			_, usage := pflag.UnquoteUsage(f)
			name := strings.TrimPrefix(cmd.CommandPath(), "taskapi ")
			for _, other := range all {
				if other.name == f.Name && other.usage == usage && other.short == f.Shorthand {
					other.commands = append(other.commands, name)
					return
				}
			}
			all = append(all, &flagOf{f.Name, f.Shorthand, usage, []string{name}})
		})
	}
	slices.SortStableFunc(all, func(a, b *flagOf) int { return strings.Compare(a.name, b.name) })
	return all
}

// markdown returns a help text with its lists as text of a fixed width.
func markdown(text string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		if strings.HasPrefix(p, "  ") {
			paragraphs[i] = "```\n" + unindented(p) + "\n```"
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// unindented returns an example without its indentation.
func unindented(example string) string {
	return strings.ReplaceAll(strings.TrimPrefix(example, "  "), "\n  ", "\n")
}

// flagsOf returns a command's flags as its help does, without --data-dir, which nearly every command has.
func flagsOf(cmd *cobra.Command) string {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.SortFlags = false
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "data-dir" {
			all.AddFlag(f)
		}
	})
	return all.FlagUsagesWrapped(120)
}

package cli

import (
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
	w := base.Environment{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Version: "1"}
	root := newRoot(w, "")
	all := []*cobra.Command{root}
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		all = append(all, cmd)
		for _, sub := range cmd.Commands() {
			if !sub.Hidden {
				add(sub)
			}
		}
	}
	for _, g := range groups {
		for _, c := range g.commands {
			cmd, _, _ := root.Find([]string{c.name})
			add(cmd)
		}
	}
	return all
}

// TestOneCommandIsBuilt: arguments that begin with a command's name build that command alone.
func TestOneCommandIsBuilt(t *testing.T) {
	for _, g := range groups {
		for _, c := range g.commands {
			if c.build == nil {
				continue
			}
			root := newRoot(base.Environment{Version: "1"}, named([]string{c.name, "--help"}))
			built := slices.DeleteFunc(slices.Clone(root.Commands()), func(cmd *cobra.Command) bool {
				return cmd.Name() == "help" || cmd.Name() == "completion"
			})
			if len(built) != 1 || built[0].Name() != c.name {
				t.Errorf("for %q %d commands were built: %v", c.name, len(built), built)
			}
		}
	}
}

// TestEveryCommandHasAnExample, and each can be typed: there is such a command, and it has the flags.
func TestEveryCommandHasAnExample(t *testing.T) {
	for _, cmd := range everyCommand() {
		if cmd.Example == "" {
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

// oneWord is one word of a command line, which may have quoted blanks.
var oneWord = regexp.MustCompile(`^ +([^ ']+|'[^']+')( \\)?$`)

// TestHelpFitsTheScreen: no line of a help text is wider than the terminal, except where one word of an example is.
func TestHelpFitsTheScreen(t *testing.T) {
	for _, columns := range []int{80, 40} {
		for _, cmd := range everyCommand() {
			text := base.Help(cmd, columns)
			if !cmd.HasParent() {
				text = overview(cmd, true, columns) + overview(cmd, false, columns)
			}
			for line := range strings.Lines(text) {
				line = strings.TrimSuffix(line, "\n")
				if utf8.RuneCountInString(line) > columns && (columns == 80 || !oneWord.MatchString(line)) {
					t.Errorf("'%s --help' has a line that is wider than %d columns: %s", cmd.CommandPath(), columns, line)
				}
				if strings.TrimRight(line, " ") != line {
					t.Errorf("'%s --help' has blanks at the end of %q", cmd.CommandPath(), line)
				}
			}
		}
	}
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
	of := map[string]string{}
	for _, g := range groups {
		for _, c := range g.commands {
			of[c.name] = g.heading
		}
	}
	for _, cmd := range everyCommand() {
		if !cmd.HasParent() || slices.Contains([]string{"help", "completion"}, cmd.Name()) ||
			cmd.Parent().Name() == "completion" {
			continue
		}
		name := strings.TrimPrefix(cmd.CommandPath(), "taskapi ")
		command, _, _ := strings.Cut(name, " ")
		fmt.Fprintf(&index, "| %s | [`%s`](#%s) | %s |\n", of[command], name, strings.ReplaceAll(name, " ", "-"), cmd.Short)
		fmt.Fprintf(&want, "\n### %s\n\n    %s\n\n%s\n", name, base.UseLine(cmd), markdown(base.Description(cmd)))
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
	for _, g := range groups {
		_, row, _ := strings.Cut(string(guide), "\n| "+g.heading+" |")
		row, _, _ = strings.Cut(row, "\n")
		for _, c := range g.commands {
			if !strings.Contains(row, "`"+c.name+"`") {
				t.Errorf("the row of %q in docs/commands.md lacks `%s`", g.heading, c.name)
			}
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
			if f.Hidden || f.Name == "help" || !cmd.HasParent() || cmd.Parent().Name() == "completion" {
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
		if items := base.HelpItems(p); items != nil {
			paragraphs[i] = "```\n" + base.HelpList(items, docsColumns) + "```"
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// docsColumns is the width of the reference.
const docsColumns = 120

// unindented returns an example without its indentation.
func unindented(example string) string {
	return strings.ReplaceAll(strings.TrimPrefix(example, "  "), "\n  ", "\n")
}

// flagsOf returns a command's flags as its help does, without --data-dir, which nearly every command has.
func flagsOf(cmd *cobra.Command) string {
	own, global := base.HelpFlags(cmd)
	global = slices.DeleteFunc(global, func(f base.HelpItem) bool { return strings.Contains(f.Term, "--data-dir") })
	return base.HelpList(append(own, global...), docsColumns)
}

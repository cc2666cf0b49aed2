package base

import (
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/internal/tty"
)

// HelpItem is a row of a list in a help text: a flag, a command or another word, and what is said about it.
type HelpItem struct{ Term, Text string }

// A help text is as wide as the terminal, up to a width that can be read well.
const (
	plainColumns   = 80 // where there is no terminal
	maxHelpColumns = 100
)

// HelpColumns returns how wide a help text may be on an output.
func HelpColumns(out io.Writer) int {
	if f, ok := out.(*os.File); ok {
		if _, columns := tty.Size(f); columns > 0 {
			return min(int(columns), maxHelpColumns)
		}
	}
	return plainColumns
}

// Help returns the help of a command.
func Help(cmd *cobra.Command, columns int) string {
	var b strings.Builder
	b.WriteString(HelpText(Description(cmd), columns))
	b.WriteString("\nUsage:\n" + commandLine(UseLine(cmd), columns, ""))
	for _, alias := range cmd.Aliases {
		b.WriteString(commandLine(strings.TrimSuffix(cmd.CommandPath(), cmd.Name())+alias+" ...", columns, ""))
	}
	if cmd.HasExample() {
		b.WriteString("\nExamples:\n")
		for line := range strings.Lines(cmd.Example) {
			b.WriteString(commandLine(strings.TrimSpace(line), columns, ` \`))
		}
	}
	own, global := HelpFlags(cmd)
	for _, group := range []struct {
		heading string
		items   []HelpItem
	}{{"Commands", helpCommands(cmd)}, {"Flags", own}, {"Global flags", global}} {
		if len(group.items) > 0 {
			b.WriteString("\n" + group.heading + ":\n" + HelpList(group.items, columns))
		}
	}
	return b.String()
}

// Description returns what the help of a command says about it, in paragraphs; see HelpText.
func Description(cmd *cobra.Command) string {
	if cmd.Long == "" {
		return cmd.Short + "."
	}
	return cmd.Long
}

// UseLine returns how a command is called.
func UseLine(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() {
		return cmd.CommandPath() + " COMMAND [flags]"
	}
	return cmd.UseLine()
}

func helpCommands(cmd *cobra.Command) (all []HelpItem) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, HelpItem{sub.Name(), sub.Short})
		}
	}
	return all
}

// Flags that mean the same in every command that has them: those of few users, and those about where things are.
var (
	commonFlags = []string{"json", "template", "namespace"}
	globalFlags = []string{"config", "data-dir", "seal-key"}
)

// HelpFlags returns a command's flags: its own in the order in which the command defines them, then the common ones and
// those that stand for arguments, and apart from them the global ones.
func HelpFlags(cmd *cobra.Command) (own, global []HelpItem) {
	var last []HelpItem
	arguments := strings.FieldsFunc(cmd.Use, func(r rune) bool { return !unicode.IsUpper(r) })
	cmd.Flags().SortFlags = false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch item := flagItem(f); {
		case f.Hidden || f.Name == "help":
		case slices.Contains(globalFlags, f.Name):
			global = append(global, item)
		case slices.Contains(commonFlags, f.Name), slices.Contains(arguments, strings.ToUpper(f.Name)):
			last = append(last, item)
		default:
			own = append(own, item)
		}
	})
	return append(own, last...), global
}

func flagItem(f *pflag.Flag) HelpItem {
	value, usage := pflag.UnquoteUsage(f)
	names := "    --" + f.Name
	if f.Shorthand != "" {
		names = "-" + f.Shorthand + ", --" + f.Name
	}
	switch {
	case value != "" && f.NoOptDefVal != "":
		names += "[=" + value + "]"
	case value != "":
		names += " " + strings.ToUpper(value)
	}
	if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
		usage += " (default " + f.DefValue + ")"
	}
	return HelpItem{names, usage}
}

// HelpText breaks a text into lines. Its paragraphs are divided by empty lines. A paragraph that begins with two blanks
// is a list: each line is a term and, after two more blanks, its text.
func HelpText(text string, columns int) string {
	var b strings.Builder
	for i, paragraph := range strings.Split(text, "\n\n") {
		if i > 0 {
			b.WriteString("\n")
		}
		if items := HelpItems(paragraph); items != nil {
			b.WriteString(HelpList(items, columns))
			continue
		}
		b.WriteString(strings.Join(wrap(strings.Fields(paragraph), columns, ""), "\n") + "\n")
	}
	return b.String()
}

// HelpItems returns the list that a paragraph is, nil for another one.
func HelpItems(paragraph string) (all []HelpItem) {
	if !strings.HasPrefix(paragraph, "  ") {
		return nil
	}
	for line := range strings.Lines(paragraph) {
		term, text, _ := strings.Cut(strings.TrimSpace(line), "  ")
		all = append(all, HelpItem{term, strings.TrimSpace(text)})
	}
	return all
}

// HelpList returns a list with the texts beside the terms or, where columns are few or a term is long, below them.
func HelpList(items []HelpItem, columns int) string {
	const widest, narrow, below = 24, 24, 8
	indent := below
	for _, item := range items {
		if width := utf8.RuneCountInString(item.Term); width <= widest {
			indent = max(indent, width+4)
		}
	}
	if columns-indent < narrow {
		indent = below
	}
	var b strings.Builder
	for _, item := range items {
		line := "  " + item.Term
		for i, text := range wrap(strings.Fields(item.Text), columns-indent, "") {
			if room := indent - utf8.RuneCountInString(line); i == 0 && room >= 2 {
				line += strings.Repeat(" ", room) + text
				continue
			}
			line = strings.TrimRight(line, " ") + "\n" + strings.Repeat(" ", indent) + text
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// commandLine returns a command line, indented by two. mark ends each line but the last.
func commandLine(line string, columns int, mark string) string {
	if utf8.RuneCountInString(line) <= columns-2 {
		return "  " + line + "\n"
	}
	var words []string // with quoted blanks in them
	for word := range strings.SplitSeq(line, " ") {
		if n := len(words); n > 0 && strings.Count(words[n-1], "'")%2 == 1 {
			words[n-1] += " " + word
			continue
		}
		words = append(words, word)
	}
	lines := wrap(words, columns-6, mark)
	return "  " + strings.Join(lines, "\n      ") + "\n"
}

// wrap puts words into lines of that many columns, as far as the words are shorter. mark ends each line but the last.
func wrap(words []string, columns int, mark string) (lines []string) {
	columns -= len(mark)
	for _, word := range words {
		n := len(lines) - 1
		if n >= 0 && utf8.RuneCountInString(lines[n])+1+utf8.RuneCountInString(word) <= columns {
			lines[n] += " " + word
			continue
		}
		if n >= 0 {
			lines[n] += mark
		}
		lines = append(lines, word)
	}
	return lines
}

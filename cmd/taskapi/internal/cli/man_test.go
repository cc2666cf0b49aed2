package cli

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/internal/must"
)

var (
	manDir     = flag.String("man-dir", "", "write the manual pages into this directory")
	manDate    = flag.String("man-date", "2026-01-01", "date of the manual pages")
	manVersion = flag.String("man-version", "", "version of the program in the manual pages")
)

// TestManPages makes the manual from what --help prints, the table of settings and docs/settings.md, and has groff and
// mandoc check it. `make man` writes it.
func TestManPages(t *testing.T) {
	pages := manPages(t)
	dir := cmp.Or(*manDir, t.TempDir())
	must.OK(t, os.MkdirAll(dir, 0o755))
	for name, text := range pages {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, cmd := range everyCommand() {
		text := pages[pageOf(cmd)+".1"]
		own, global := base.HelpFlags(cmd)
		for _, f := range append(own, global...) {
			if _, option, _ := strings.Cut(text, "OPTIONS\n"); !strings.Contains(option, manEscape(strings.TrimSpace(f.Term))) {
				t.Errorf("%s.1 lacks %s", pageOf(cmd), f.Term)
			}
		}
	}
	for name, text := range pages {
		if found := notASCII.FindString(text); found != "" {
			t.Errorf("%s has a character that is not of ASCII: %q", name, found)
		}
	}
	for _, lint := range [][]string{
		{"groff", "-man", "-ww", "-z", "-Tutf8"},
		{"mandoc", "-Tlint", "-Wwarning"},
	} {
		t.Run(lint[0], func(t *testing.T) {
			if _, err := exec.LookPath(lint[0]); err != nil {
				t.Skipf("%s, which checks manual pages, is not installed", lint[0])
			}
			cmd := exec.CommandContext(t.Context(), lint[0], append(lint[1:], slices.Sorted(maps.Keys(pages))...)...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%s: %v\n%s", lint[0], err, out)
			}
		})
	}
}

var notASCII = regexp.MustCompile(`[^\n -~].*`)

// manPages returns the manual by the names of its files.
func manPages(t *testing.T) map[string]string {
	pages := map[string]string{"taskapi.hcl.5": settingsPage(t)}
	for _, cmd := range everyCommand() {
		pages[pageOf(cmd)+".1"] = commandPage(cmd)
	}
	return pages
}

// pageOf returns the name of a command's page.
func pageOf(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage is a page of the manual, in the language of man(7).
type manPage struct{ bytes.Buffer }

// newManPage begins a page with its name and, in a few words, its subject.
func newManPage(name, section, subject string) *manPage {
	var p manPage
	fmt.Fprintf(&p, ".TH %s %s %q %q %q\n", strings.ToUpper(manEscape(name)), section, *manDate,
		strings.TrimSpace("taskapi "+*manVersion), "taskapi manual")
	p.WriteString(".nh\n.ad l\n") // no hyphen within a name, and single blanks within an example
	p.section("NAME")
	first, size := utf8.DecodeRuneInString(subject)
	p.line(name + " ")
	p.Truncate(p.Len() - 1)
	fmt.Fprintf(&p, "\\- %s\n", manEscape(string(unicode.ToLower(first))+subject[size:]))
	return &p
}

func (p *manPage) section(heading string) { p.WriteString(".SH " + heading + "\n") }

// line writes a line of text, which is no request even if it begins with a dot.
func (p *manPage) line(text string) {
	text = manEscape(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	p.WriteString(text + "\n")
}

// text writes a help text without its exit codes, and returns those.
func (p *manPage) text(text string) (codes string) {
	isFirst := true
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if found, ok := strings.CutPrefix(paragraph, "Exit code: "); ok {
			codes = found
			continue
		}
		items := base.HelpItems(paragraph)
		switch {
		case items != nil:
			p.list(items)
		case !isFirst:
			p.WriteString(".PP\n")
			fallthrough
		default:
			p.lines(paragraph)
		}
		isFirst = false
	}
	return codes
}

func (p *manPage) lines(paragraph string) {
	for line := range strings.Lines(base.HelpText(paragraph, 76)) {
		p.line(strings.TrimSuffix(line, "\n"))
	}
}

// list writes terms in bold, each with its text.
func (p *manPage) list(items []base.HelpItem) {
	for _, item := range items {
		fmt.Fprintf(p, ".TP\n\\fB%s\\fR\n", manEscape(strings.TrimSpace(item.Term)))
		p.lines(item.Text)
	}
}

// literal writes lines as they are.
func (p *manPage) literal(text string) {
	p.WriteString(".RS 4\n.nf\n")
	for line := range strings.Lines(text) {
		p.line(strings.TrimSuffix(line, "\n"))
	}
	p.WriteString(".fi\n.RE\n")
}

// see writes references to pages.
func (p *manPage) see(pages ...string) {
	p.section("SEE ALSO")
	for i, page := range pages {
		name, section, _ := strings.Cut(page, "(")
		end := ","
		if i == len(pages)-1 {
			end = ""
		}
		fmt.Fprintf(p, ".BR %s (%s%s\n", manEscape(name), section, end)
	}
}

// manEscape returns text as one that a formatter prints character by character. A list of options without blanks may
// be broken between two of them.
func manEscape(text string) string {
	return strings.NewReplacer(`\`, `\(rs`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`,
		"[,", `\:[,`).Replace(text)
}

func commandPage(cmd *cobra.Command) string {
	p := newManPage(pageOf(cmd), "1", cmd.Short)
	p.section("SYNOPSIS")
	fmt.Fprintf(p, "\\fB%s\\fR%s\n", manEscape(cmd.CommandPath()),
		manEscape(strings.TrimPrefix(base.UseLine(cmd), cmd.CommandPath())))
	p.section("DESCRIPTION")
	codes := p.text(base.Description(cmd))
	if !cmd.HasParent() {
		codes = p.text(exitCodes)
	}
	for _, alias := range cmd.Aliases {
		p.WriteString(".PP\n")
		p.line(fmt.Sprintf("The command %s is the same.", alias))
	}
	seeAlso := []string{"taskapi(1)", "taskapi.hcl(5)"}
	if !cmd.HasParent() {
		p.section("COMMANDS")
		for _, g := range groups {
			fmt.Fprintf(p, ".SS %s\n", g.heading)
			for _, c := range g.commands {
				sub, _, _ := cmd.Find([]string{c.name})
				p.list([]base.HelpItem{{Term: pageOf(sub) + "(1)", Text: sub.Short + "."}})
			}
		}
		p.section("ENVIRONMENT")
		p.list(base.HelpItems(environment))
		seeAlso = seeAlso[1:]
	} else if cmd.HasAvailableSubCommands() {
		p.section("COMMANDS")
		for _, sub := range cmd.Commands() {
			p.list([]base.HelpItem{{Term: pageOf(sub) + "(1)", Text: sub.Short + "."}})
		}
	}
	own, global := base.HelpFlags(cmd)
	if len(own)+len(global) > 0 {
		p.section("OPTIONS")
		p.list(append(own, global...))
	}
	if codes != "" {
		p.section("EXIT STATUS")
		p.lines(codes)
	}
	p.section("EXAMPLES")
	p.literal(unindented(cmd.Example))
	if parent := cmd.Parent(); parent != nil && parent.HasParent() {
		seeAlso = append([]string{pageOf(parent) + "(1)"}, seeAlso...)
	}
	p.see(seeAlso...)
	return p.String()
}

// hclBlock is the first example of a file in docs/settings.md.
var hclBlock = regexp.MustCompile("(?s)```hcl\n(.*?)```")

func settingsPage(t *testing.T) string {
	doc, err := os.ReadFile("../../../../docs/settings.md")
	example := hclBlock.FindSubmatch(doc)
	if err != nil || example == nil {
		t.Fatalf("docs/settings.md has no example of a file: %v", err)
	}
	p := newManPage("taskapi.hcl", "5", "Settings of taskapi")
	p.section("DESCRIPTION")
	p.text(settingsText)
	p.section("SETTINGS")
	for _, k := range settings.Keys() {
		standard := cmp.Or(k.Default, "none")
		if k.Env != "" {
			standard = "$" + k.Env
		}
		p.list([]base.HelpItem{{Term: k.Name, Text: k.Doc + ". Default: " + standard + "."}})
	}
	p.section("FILES")
	p.list(base.HelpItems(settingsFiles))
	p.section("EXAMPLES")
	p.literal(string(example[1]))
	p.see("taskapi(1)", "taskapi-config(1)", "taskapi-run(1)")
	return p.String()
}

const settingsText = `The settings say how taskapi works, whatever the job. A setting NAME.KEY is KEY in the block NAME.

A value that is given to 'taskapi run' and other commands by a flag or by -o KEY=VALUE wins over the values that the
allocation remembers from its last run. Those win over the environment, and the environment wins over the file.
'taskapi config' checks the files, and prints each setting with its value and the place that it comes from.

A relative path is one of the file's directory. A file that others than root and its owner can change is refused.`

const settingsFiles = `  /etc/taskapi/taskapi.hcl       the machine's file, for root
  ~/.config/taskapi/taskapi.hcl  the file of another user; $XDG_CONFIG_HOME stands for ~/.config
  $TASKAPI_CONFIG                a file in the place of both, as with --config
  DATA_DIR/taskapi.hcl           the data directory's own: keyring.seal_key, the file with the key of its key ring,
                                 and the block cluster, etcd for several machines`

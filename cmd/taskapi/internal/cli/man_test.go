package cli

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/internal/must"
)

var (
	manDir     = flag.String("man-dir", "", "write the manual pages into this directory")
	manDate    = flag.String("man-date", "2026-01-01", "date of the manual pages")
	manVersion = flag.String("man-version", "", "version of the program in the manual pages")
)

// TestManPages makes the manual from the commands, the table of settings and docs/settings.md, and has groff and mandoc
// check it. `make man` writes it.
func TestManPages(t *testing.T) {
	dir := cmp.Or(*manDir, t.TempDir())
	must.OK(t, os.MkdirAll(dir, 0o755))
	date := must.Get(time.Parse(time.DateOnly, *manDate))(t)
	header := doc.GenManHeader{Date: &date, Source: strings.TrimSpace("taskapi " + *manVersion), Manual: "taskapi manual"}
	commands := everyCommand()
	for _, cmd := range commands {
		cmd.DisableAutoGenTag, cmd.Long = true, markdown(cmd.Long)
		cmd.Flags().VisitAll(func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) })
	}
	commands[0].Long += "\n\n# ENVIRONMENT\n" + markdown(environment)
	must.OK(t, doc.GenManTree(commands[0], &header, dir))
	var page strings.Builder
	header.Section = "5"
	must.OK(t, doc.GenMan(settingsPage(t), &header, &page))
	must.OK(t, os.WriteFile(filepath.Join(dir, "taskapi.hcl.5"), []byte(page.String()), 0o644))

	for _, cmd := range commands {
		if cmd.Name() == "help" { // has no page
			continue
		}
		text := string(must.Read(t, filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1")))
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if name := `--` + f.Name; !f.Hidden && !strings.Contains(strings.ReplaceAll(text, `\-`, "-"), name) {
				t.Errorf("the page of %q lacks %s", cmd.CommandPath(), name)
			}
		})
	}
	pages := must.Get(filepath.Glob(filepath.Join(dir, "*.[15]")))(t)
	for _, lint := range [][]string{
		{"groff", "-man", "-Wbreak", "-z", "-Tutf8"},
		{"mandoc", "-Tlint", "-Werror"},
	} {
		t.Run(lint[0], func(t *testing.T) {
			if _, err := exec.LookPath(lint[0]); err != nil {
				t.Skipf("%s, which checks manual pages, is not installed", lint[0])
			}
			out, err := exec.CommandContext(t.Context(), lint[0], append(lint[1:], pages...)...).CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("%s: %v\n%s", lint[0], err, out)
			}
		})
	}
}

// hclBlock is the first example of a file in docs/settings.md.
var hclBlock = regexp.MustCompile("(?s)```hcl\n(.*?)```")

// settingsPage returns the page of the settings file in the form of a command.
func settingsPage(t *testing.T) *cobra.Command {
	example := hclBlock.FindSubmatch(must.Read(t, "../../../../docs/settings.md"))
	if example == nil {
		t.Fatal("docs/settings.md has no example of a file")
	}
	var keys strings.Builder
	for _, k := range settings.Keys() {
		standard := cmp.Or(k.Default, "none")
		if k.Env != "" {
			standard = "$" + k.Env
		}
		fmt.Fprintf(&keys, "**%s**\n: %s. Default: `%s`.\n\n", k.Name, k.Doc, standard)
	}
	return &cobra.Command{Use: "taskapi.hcl", Short: "settings of taskapi", DisableAutoGenTag: true,
		Long: settingsText + "\n\n# SETTINGS\n" + keys.String() + "\n# FILES\n" + settingsFiles, Example: string(example[1])}
}

const settingsText = `The settings say how taskapi works, whatever the job. A setting NAME.KEY is KEY in the block NAME.

A value that is given to 'taskapi run' and other commands by a flag or by -o KEY=VALUE wins over the values that the
allocation remembers from its last run. Those win over the environment, and the environment wins over the file.
'taskapi config' checks the files, and prints each setting with its value and the place that it comes from.

A relative path is one of the file's directory. A file that others than root and its owner can change is refused.`

const settingsFiles = "```" + `
/etc/taskapi/taskapi.hcl       the machine's file, for root
~/.config/taskapi/taskapi.hcl  the file of another user; $XDG_CONFIG_HOME
                               stands for ~/.config
$TASKAPI_CONFIG                a file in the place of both, as with --config
DATA_DIR/taskapi.hcl           the data directory's own: keyring.seal_key, the
                               file with the key of its key ring, and the block
                               cluster, etcd for several machines
` + "```"

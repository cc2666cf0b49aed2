package base

import (
	"io"
	"testing"

	"github.com/spf13/cobra"

	"taskapi/internal/must"
	"taskapi/internal/tty"
)

// TestHelpColumns: a help text is as wide as the terminal, but never wider than can be read well.
func TestHelpColumns(t *testing.T) {
	master, slave, err := tty.Open()
	must.OK(t, err)
	defer master.Close()
	defer slave.Close()
	for columns, want := range map[uint16]int{40: 40, 250: 100, 0: 80} {
		must.OK(t, tty.Resize(slave, 24, columns))
		if got := HelpColumns(slave); got != want {
			t.Errorf("on a terminal of %d columns, help has %d, want %d", columns, got, want)
		}
	}
	if got := HelpColumns(io.Discard); got != 80 {
		t.Errorf("without a terminal, help has %d columns, want 80", got)
	}
}

// TestHelp shows each part of a help text: flags of few users stand after the command's own, and global ones apart.
func TestHelp(t *testing.T) {
	cmd := &cobra.Command{
		Use:   "show [flags] [ALLOC]",
		Short: "Show something",
		Long: `Shows something in as many words as are
needed to fill more than one line.

  first   what stands first
  second  what stands after the first, and is longer`,
		Example: `  show --size 3 'one word' another yet-another`,
		Run:     func(*cobra.Command, []string) {},
	}
	var dir string
	AddDataDir(cmd, &dir)
	f := cmd.Flags()
	f.Lookup("data-dir").Usage = "`DIR` of files"
	f.String("alloc", "", "`ALLOC` by a flag")
	f.Bool("json", false, "print JSON")
	f.IntP("size", "s", 2, "`N` bytes")
	f.String("mode", "", "a `MODE`")
	f.Lookup("mode").NoOptDefVal = "fast"
	f.Bool("secret", false, "")
	_ = f.MarkHidden("secret")
	const want = `Shows something in as many words as are
needed to fill more than one line.

  first   what stands first
  second  what stands after the first,
          and is longer

Usage:
  show [flags] [ALLOC]

Examples:
  show --size 3 'one word' another \
      yet-another

Flags:
  -s, --size N
        N bytes (default 2)
      --mode[=MODE]
        a MODE
      --alloc ALLOC
        ALLOC by a flag
      --json
        print JSON

Global flags:
      --data-dir DIR
        DIR of files
`
	if got := Help(cmd, 40); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

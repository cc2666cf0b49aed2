package output_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestShortIDs(t *testing.T) {
	got := output.ShortIDs([]string{"115ef685-6b9e", "115ef685-7b9e", "215ef685-6b9e", "x"})
	if want := "115ef685-6 115ef685-7 215ef685 x"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
}

func TestFigures(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", -time.Hour: "0s", 59600 * time.Millisecond: "1m0s",
		61 * time.Minute: "1h1m", 100 * time.Hour: "4d4h"} {
		same.As(t, want, output.Duration(d), d, " is")
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 1 << 20: "1.00 MiB",
		1023 << 10: "1.00 MiB", 24 << 20: "24.0 MiB",
		700 << 20: "700 MiB", 1<<64 - 1: "16.0 EiB"} {
		same.As(t, want, output.Bytes(n), n, " bytes are")
	}
}

// TestTable aligns columns also of other letters and colours, ends rows without spaces, and lets no text steer the
// terminal.
func TestTable(t *testing.T) {
	table := output.Table{Indent: 1}
	table.Row("größer", "b\x1b[31m\nc", "")
	table.Row("a", "", "d")
	if want := " größer  b?[31m c\n a                 d\n"; table.String() != want {
		t.Errorf("got %q, want %q", table.String(), want)
	}
	table = output.Table{Colors: true}
	table.Row("a", "b")
	table.Paint(0, output.Red)
	table.Row("ccc", "d")
	if want := "\x1b[31ma\x1b[0m    b\nccc  d\n"; table.String() != want {
		t.Errorf("got %q, want %q", table.String(), want)
	}
}

// TestColors paints for a terminal that can show it, unless its user does not want that.
func TestColors(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("there are no terminals here: ", err)
	}
	defer terminal.Close()
	file := must.Get(os.CreateTemp(t.TempDir(), ""))(t)
	defer file.Close()
	for _, tc := range []struct {
		out  *os.File
		env  string
		want output.Colors
	}{
		{terminal, "", true},
		{terminal, "TERM=xterm", true},
		{terminal, "TERM=dumb", false},
		{terminal, "NO_COLOR=1", false},
		{terminal, "NO_COLOR=", true}, // the empty one is as none
		{terminal, "CLICOLOR=0", false},
		{terminal, "CLICOLOR=1", true},
		{terminal, "CLICOLOR_FORCE=1 NO_COLOR=1", false},
		{file, "", false},
		{file, "CLICOLOR_FORCE=1", true},
		{file, "CLICOLOR_FORCE=0", false},
	} {
		env := map[string]string{}
		for pair := range strings.FieldsSeq(tc.env) {
			key, value, _ := strings.Cut(pair, "=")
			env[key] = value
		}
		if got := output.ColorsFor(tc.out, func(key string) string { return env[key] }); got != tc.want {
			t.Errorf("%s with %s: painted %t, want %t", tc.out.Name(), tc.env, got, tc.want)
		}
	}
	if output.Width(file) != 0 {
		t.Error("a file has columns")
	}
}

// TestTemplate writes nothing of what fails.
func TestTemplate(t *testing.T) {
	value := map[string]any{"Name": "x", "List": []string{"a", "b"}}
	for text, want := range map[string]string{
		"{{.Name}}":          "x\n",
		`{{join "," .List}}`: "a,b\n",
		"{{json .}}\n":       `{"List":["a","b"],"Name":"x"}` + "\n",
		"x {{.Name.Of}}":     "error: can't evaluate field Of",
		"{{.None}}":          "error: no entry for key",
		"{{":                 "error: unclosed action",
		`{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`: "error: exceeded maximum template depth",
	} {
		var out strings.Builder
		parsed, err := output.ParseTemplate(text)
		if err == nil {
			err = parsed.Write(&out, value)
		}
		if message, fails := strings.CutPrefix(want, "error: "); fails {
			if _, ok := errors.AsType[*output.TemplateError](err); !ok || !strings.Contains(err.Error(), message) ||
				out.Len() > 0 {
				t.Errorf("%s: wrote %.40q, %v; want the error %s", text, out.String(), err, message)
			}
		} else if err != nil || out.String() != want {
			t.Errorf("%s: wrote %q, %v; want %q", text, out.String(), err, want)
		}
	}
}

// TestClock: a time of another day has its date.
func TestClock(t *testing.T) {
	at := time.Date(2026, 11, 22, 23, 59, 59, 5e6, time.Local)
	for now, want := range map[time.Time]string{
		at.Add(-time.Hour):    "23:59:59.005",
		at.Add(time.Second):   "2026-11-22 23:59:59.005",
		at.AddDate(1, 0, 0):   "2026-11-22 23:59:59.005",
		at.AddDate(0, 0, -30): "2026-11-22 23:59:59.005",
	} {
		same.As(t, want, output.Clock(at, now), "at ", now)
	}
}

package bounded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/limited"
	"taskapi/internal/must"
)

// doubling returns a chain of locals each of which is twice the one before: 2^40 bytes at its end.
func doubling() string {
	var b strings.Builder
	b.WriteString("a0 = \"xx\"\n")
	for i := range 40 {
		fmt.Fprintf(&b, "a%d = \"${local.a%d}${local.a%d}\"\n", i+1, i, i)
	}
	return b.String()
}

// yamlBomb returns a text whose aliases stand for wide^(deep+1) elements.
func yamlBomb(wide, deep int) string {
	var b strings.Builder
	b.WriteString("yamldecode(<<EOT\na0: &a0 [" + strings.Repeat("x,", wide) + "]\n")
	for i := range deep {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), wide))
	}
	return b.String() + "EOT\n)"
}

// large returns a local s that repeats a text a million times.
func large(element string) string {
	return fmt.Sprintf("s = join(\"\", [for i in range(1000): %q])", strings.Repeat(element, 1000))
}

// TestHostileTextsAreRefused, whatever they make the parser do.
func TestHostileTextsAreRefused(t *testing.T) {
	t.Parallel()
	const tooMuch, time = "takes more than ", "takes more than 1 seconds of processor time to read"
	const memory, tooLong = "takes more than 256 MiB of memory to read", "comes to more than 32 MiB"
	const nested = "[for a in range(1000): [for b in range(1000): [for c in range(1000): [for d in range(1000): 1]]]]"
	dynamic := func(kind, content string) string {
		return fmt.Sprintf("dynamic %q {\nfor_each = range(1000)\nlabels = [%[1]s.value]\ncontent {\n%s\n}\n}\n", kind,
			content)
	}
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "self.tmpl"), []byte(`${templatefile("self.tmpl", {})}`), 0o600))
	for name, c := range map[string]struct{ locals, value, want string }{
		"deep brackets":     {"", strings.Repeat("(", 200_000) + "1" + strings.Repeat(")", 200_000), tooMuch},
		"deep lists":        {"", strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000), tooMuch},
		"a long chain":      {"", "1" + strings.Repeat("+1", 1_000_000), tooMuch},
		"doubling strings":  {doubling(), `"x"`, memory},
		"nested for":        {"", nested, tooMuch},
		"range":             {"", "range(0, 1000000000)", "more than 1024 values"},
		"a wide format":     {"", `format("%999999999s", "x")`, memory},
		"a long job":        {large("<"), `join("", [for i in range(6): local.s])`, tooLong},
		"indent":            {"", `indent(1000000000, "a\nb")`, memory},
		"replace":           {large("a"), `replace(local.s, "a", local.s)`, memory},
		"join":              {large("a"), `join(local.s, range(1000))`, tooMuch},
		"setproduct":        {"", "setproduct(range(1000), range(1000), range(1000))", memory},
		"one bcrypt":        {"", `bcrypt("x", 31)`, time},
		"yaml":              {"", yamlBomb(10, 9), tooMuch},
		"deep json":         {large("["), `jsondecode(local.s)`, tooMuch},
		"a long number":     {"", `"${1e99999999}"`, tooMuch},
		"a device":          {"", `file("/dev/zero")`, "no regular file"},
		"a directory":       {"", `file("/")`, "it is a directory"},
		"a template itself": {"", `templatefile("self.tmpl", {})`, "self.tmpl:1: templatefile can't be called so"},
		"one long match":    {large("a"), `length(regexall("(x?){1000}(x+x+)+y", local.s))`, tooMuch},
		"a heredoc":         {"h = <<-E\n" + strings.Repeat("   x\n", 500_000) + "E\n", `"x"`, tooMuch},
		"blocks":            {"", "1\n}\n" + strings.Repeat("constraint {}\n", 50_000) + "x = {", "more than 10000 blocks"},
		"dynamic":           {"", "1\n}\n" + dynamic("group", dynamic("task", "")) + "x = {", "more than 10000 blocks"},
		"dynamic in config": {"", "1\n}\ngroup \"g\" {\ntask \"t\" {\nconfig {\n" + dynamic("a", dynamic("b", "")) +
			"\n}\n}\n}\nx = {", "more than 10000 blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := job(c.locals, c.value)
			cfg.Dir = dir
			if plain(cfg) {
				t.Error("a command reads it without limits")
			}
			l := limited.Limits{Seconds: 60, Memory: 256 << 20}
			if c.want == tooMuch || c.want == time {
				l.Seconds = 1
			}
			_, err := parse(t.Context(), cfg, l)
			if !errors.Is(err, jobspec.ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%.300v, want %s", err, c.want)
			}
		})
	}
}

// TestParseEndsWithItsContext: a caller that stops waiting leaves no process behind.
func TestParseEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := parse(ctx, job("", `join("", [for i in range(1000): bcrypt("x", 14)])`),
			limited.Limits{Seconds: 3600, Memory: 1 << 30})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it is cancelled", err)
	}
}

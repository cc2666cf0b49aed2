package bounded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/must"
)

func TestMain(m *testing.M) {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector would let each process sleep for a second
	os.Exit(m.Run())
}

// job returns a job file with locals and the value of one meta.
func job(locals, value string) jobspec.Config {
	body := fmt.Sprintf("locals {\n%s\n}\njob \"x\" {\n  meta = { a = %s }\n}\n", locals, value)
	return jobspec.Config{Filename: "x.hcl", Body: []byte(body)}
}

func parseHere(_ context.Context, cfg jobspec.Config) (*api.Job, error) { return Here(cfg) }

// TestParseIsJobspecs: the way through another process changes no job, and no error about one.
func TestParseIsJobspecs(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../testdata/*.hcl", "../testdata/*.json", "../testdata/*/*.hcl",
		"../../../examples/*.hcl"} {
		found := must.Get(filepath.Glob(pattern))(t)
		files = append(files, found...)
	}
	if len(files) < 10 {
		t.Fatalf("job files: %q", files)
	}
	for _, file := range files {
		cfg := must.Get(jobspec.ReadFile(file, nil, jobspec.Config{Audience: "a"}))(t)
		for _, cfg.AsWritten = range []bool{true, false} {
			want, wantErr := jobspec.Parse(cfg)
			for name, parse := range map[string]func(context.Context, jobspec.Config) (*api.Job, error){"here": parseHere,
				"elsewhere": Parse} {
				got, err := parse(t.Context(), cfg)
				if fmt.Sprint(err) != fmt.Sprint(wantErr) ||
					errors.Is(err, jobspec.ErrInvalid) != errors.Is(wantErr, jobspec.ErrInvalid) {
					t.Errorf("%s, %s: %v, want %v", file, name, err, wantErr)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s, %s (-jobspec's +this):\n%s", file, name, diff)
				}
			}
		}
	}
}

// TestFromFilesComeBack: the texts that no message may quote are known here, too.
func TestFromFilesComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	must.OK(t, os.WriteFile(path, []byte("hunter2"), 0o600))
	cfg := job("", fmt.Sprintf("upper(file(%q))", path))
	for name, parse := range map[string]func(context.Context, jobspec.Config) (*api.Job, error){"here": parseHere,
		"elsewhere": Parse} {
		cfg.FromFiles = &jobspec.FromFiles{}
		if _, err := parse(t.Context(), cfg); err != nil || cfg.FromFiles.Mask("it is HUNTER2") != "it is (from a file)" {
			t.Errorf("%s: %v, %q", name, err, cfg.FromFiles.Texts)
		}
	}
}

// TestLimits: what can't be interrupted ends, whatever it is.
func TestLimits(t *testing.T) {
	t.Parallel()
	large := func(element string) string {
		return fmt.Sprintf("s = join(\"\", [for i in range(1000): %q])", strings.Repeat(element, 1000))
	}
	soon, small := limits{CPU: 100 * time.Millisecond, Memory: 1 << 30}, limits{CPU: time.Minute, Memory: 24 << 20}
	for name, c := range map[string]struct {
		locals, value string
		limits        limits
	}{
		"bcrypt":         {"", `join("", [for i in range(1000): bcrypt("x", 14)])`, soon},
		"one long match": {large("a"), `length(regexall("(x?){1000}(x+x+)+y", local.s))`, soon},
		"many matches":   {large("a"), `length(regexall(".*b|a", local.s))`, soon},
		"a number":       {large("9999"), `parseint(local.s, 10) % 2`, soon},
		"pairs": {"", `length(distinct(flatten([for i in range(60): [for j in range(1000): "${i}-${j}"]])))`,
			soon},
		"characters": {large("é") + "\nc = \"${join(\"\", [for i in range(1000): \"" + strings.Repeat("ü", 1000) +
			"\"])}é\"", `trim(local.s, local.c)`, soon},
		"a heredoc":        {"h = <<-E\n" + strings.Repeat("   x\n", 500_000) + "E\n", `"x"`, soon},
		"a list each time": {"", `join("", [for a in range(1000): [for b in range(450): range(1000)[0]][0]])`, soon},
		"captures": {large("a"), `length(regexall("` + strings.Repeat("(", 200) + "a" + strings.Repeat(")", 200) +
			`", local.s))`, small},
		"a wide format": {"", `format("` + strings.Repeat("%[1]999d", 100_000) + `", 1)`, small},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(t.Context(), job(c.locals, c.value), c.limits)
			want := "x.hcl takes more than 100ms of a processor's time to read"
			if c.limits == small {
				want = "x.hcl takes more than 24 MiB of memory to read"
			}
			if !errors.Is(err, jobspec.ErrInvalid) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%.300v, want %s", err, want)
			}
		})
	}
}

// TestLimitsHere: a command says what is wrong while the parser is still at work, and ends it with itself.
func TestLimitsHere(t *testing.T) {
	hostile := job("", `join("", [for i in range(20): bcrypt("x", 13)])`) // which ends a while after this test
	_, err := here(hostile, limits{CPU: 100 * time.Millisecond, Memory: 1 << 40})
	if !errors.Is(err, jobspec.ErrInvalid) ||
		!strings.Contains(fmt.Sprint(err), "x.hcl takes more than 100ms of a processor's time to read") {
		t.Error(err)
	}
	// 10 MB, and copies
	memory := job("l = [for i in range(1000): join(\"\", [for j in range(1000): \"0123456789\"])]",
		`length(join("", local.l))`)
	_, err = here(memory, limits{CPU: time.Hour, Memory: 1 << 20})
	if !errors.Is(err, jobspec.ErrInvalid) ||
		!strings.Contains(fmt.Sprint(err), "x.hcl takes more than 1 MiB of memory to read") {
		t.Error(err)
	}
}

// TestParseEndsWithItsContext: a caller that stops waiting leaves no process behind.
func TestParseEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := parse(ctx, job("", `join("", [for i in range(1000): bcrypt("x", 14)])`),
			limits{CPU: time.Hour, Memory: 1 << 30})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it is cancelled", err)
	}
}

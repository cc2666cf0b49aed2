package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"taskapi/internal/must"
)

// TestMeasure builds the program, and runs measurements on a real taskapi, so briefly that the figures mean nothing.
// The test holds that they can be measured, that taskapi refuses a whole flood of bad tokens, which the floor answers,
// and that a comparison tells a slower program from a faster one.
func TestMeasure(t *testing.T) {
	binary, bench := build(t, "taskapi/cmd/taskapi"), build(t, "taskapi/cmd/taskapi/bench") // minutes on a new machine
	// measure returns what the benchmark prints, whether or not its exit code is 0.
	measure := func(t *testing.T, args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // ends what hangs
		defer cancel()
		cmd := exec.CommandContext(ctx, bench, append(args, "-rounds", "1", "-seconds", "0.2")...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it cleans up
		cmd.Stderr = t.Output()
		return cmd.Output()
	}
	t.Run("attack", func(t *testing.T) {
		text := must.Get(measure(t, "-binary", binary, "-run", "attack"))(t)
		if want := `(?m)^the others: not refused  +0\.0 %  +100\.0 %`; !regexp.MustCompile(want).Match(text) {
			t.Errorf("no line like %s: taskapi does not refuse all, or the floor some, in:\n%s", want, text)
		}
	})
	slower := filepath.Join(t.TempDir(), "slower")
	script := fmt.Sprintf("#!/bin/sh\nsleep 1\nexec %s \"$@\"\n", binary)
	must.Program(t, slower, []byte(script))
	for verdict, args := range map[string][]string{
		"worse":  {"-binary", slower, "-compare", binary},
		"better": {"-binary", binary, "-compare", slower},
	} {
		t.Run(verdict, func(t *testing.T) {
			text, err := measure(t, append(args, "-run", "start")...)
			row := `(?m)^the operator's first 200  .* ` + verdict + ` *$`
			if !regexp.MustCompile(row).Match(text) {
				t.Errorf("%v, and no row like %s in:\n%s", err, row, text)
			}
			exit, failed := errors.AsType[*exec.ExitError](err)
			if verdict == "worse" && (!failed || exit.ExitCode() != 1) {
				t.Errorf("it ended with %v, want exit code 1", err)
			}
		})
	}
}

// build builds a program as `make build` does, without the race detector: it makes every process end a second later.
func build(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return path
}

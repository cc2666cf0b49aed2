package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// TestMeasure builds the program, and runs the measurement that uses most of it on a real taskapi, so briefly that
// the figures mean nothing. What the test holds is that they can be measured, and that taskapi refuses the whole
// flood, which the floor answers.
func TestMeasure(t *testing.T) {
	binary, bench := build(t, "taskapi/cmd/taskapi"), build(t, "taskapi/cmd/taskapi/bench") // minutes on a new machine
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)                          // ends what hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, bench, "-binary", binary, "-run", "attack", "-seconds", "0.2", "-rounds", "1")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it cleans up
	cmd.Stderr = t.Output()
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^2 good beside 8 hostile .* statuses$`, `(?m)^floor  .*  200: 100\.0%$`, `(?m)^taskapi  .*  40[13]: [0-9.]+%`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no line like %s in:\n%s", want, text)
		}
	}
	if regexp.MustCompile(`(?m)^taskapi .* 200: `).Match(text) {
		t.Errorf("taskapi answers hostile requests:\n%s", text)
	}
}

// build builds a program as `make build` does, without the race detector: it makes every process end a second later.
func build(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return path
}

package cli_test

import (
	"bytes"
	"testing"

	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// TestWaitIsCompleted with what can be waited for.
func TestWaitIsCompleted(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	code := cli.Run(t.Context(), []string{"__complete", "run", "--wait="}, base.Environment{Stdout: &out, Stderr: &errs})
	if want := "healthy\nrunning\ncomplete\n:4\n"; code != 0 || out.String() != want {
		t.Errorf("exit code %d, %q, %q; want %q", code, out.String(), errs.String(), want)
	}
}

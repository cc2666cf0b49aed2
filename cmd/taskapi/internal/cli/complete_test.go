package cli_test

import (
	"bytes"
	"testing"

	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// TestFlagsAreCompleted: the shell completes the states of --wait and the settings of -o.
func TestFlagsAreCompleted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, begun, want string }{
		{"--group=g", "--wait=", "healthy\nrunning\ncomplete\n:4\n"},
		{"-o", "host_i", "host_ip=\taddress on which a group's ports are allocated\n:6\n"},
	} {
		var out, errs bytes.Buffer
		args := []string{"__complete", "run", c.before, c.begun}
		code := cli.Run(t.Context(), args, base.Environment{Stdout: &out, Stderr: &errs})
		if code != 0 || out.String() != c.want {
			t.Errorf("%q: exit code %d, %q, %q; want %q", args, code, out.String(), errs.String(), c.want)
		}
	}
}

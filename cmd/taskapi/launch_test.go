package main

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLaunchOrder: a process that is to become a task's program initializes few packages before it knows that. With what
// waits for the tables of package unicode, such as fmt and nearly every other package, it would take more than twice as
// long, at each start and script check.
func TestLaunchOrder(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	nobody, err := os.Open(os.DevNull) // who says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	cmd := &exec.Cmd{Path: self, Args: []string{"taskapi-start"}, Env: []string{"GODEBUG=inittrace=1"},
		ExtraFiles: []*os.File{nobody}}
	trace, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 126 {
		t.Fatalf("it ended with %v, want exit status 126:\n%s", err, trace)
	}
	var initialized []string
	for line := range strings.Lines(string(trace)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "init" {
			initialized = append(initialized, fields[1])
		}
	}
	const most = 30 // as of Go 1.26 they are 24
	if len(initialized) > most || slices.Contains(initialized, "unicode") || !slices.Contains(initialized, "os") {
		t.Errorf("%d packages are initialized before allocrunner/internal/launch/become; want at most %d, with os and "+
			"without unicode: %q", len(initialized), most, initialized)
	}
}

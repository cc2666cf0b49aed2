package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test's own executable play the roles, as the benchmark's does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestMeasure runs every measurement on a real taskapi, so briefly that the figures mean nothing: what it holds is that they
// can be measured.
func TestMeasure(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	binary := filepath.Join(t.TempDir(), "taskapi")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "taskapi/cmd/taskapi")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	got, err := measure(ctx, options{binary: binary, run: "a,b,c,d", seconds: 0.05, rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Throughput) != len(connections) || got.Throughput[0].Ratio.Median <= 0 {
		t.Errorf("throughput: %+v", got.Throughput)
	}
	if got.Start == nil || got.Start.Task.Median < got.Start.TaskMain.Min || got.Start.TaskMain.Min <= 0 {
		t.Errorf("start: %+v", got.Start)
	}
	if got.Memory == nil || got.Memory.Ours.Processes < 1 || got.Memory.Ours.PSS <= 0 || got.Memory.Ours.PSS > got.Memory.Ours.RSS {
		t.Errorf("memory: %+v", got.Memory)
	}
	if len(got.Attack) != 2 || got.Attack[0].Statuses[200] == 0 || got.Attack[1].Statuses[200] != 0 || got.Attack[1].Hostile <= 0 {
		t.Errorf("attack: %+v", got.Attack)
	}
	var out bytes.Buffer
	if err := got.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"16 connection(s)", "the task's first 200", "keeper included", "hostile"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

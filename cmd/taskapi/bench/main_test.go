package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMeasure runs every measurement on a real taskapi, so briefly that the figures mean nothing: what it holds is that they
// can be measured.
func TestMeasure(t *testing.T) {
	binary, bench := build(t.Context(), t, "taskapi/cmd/taskapi"), build(t.Context(), t, "taskapi/cmd/taskapi/bench") // minutes on a new machine
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)                                                   // so long lasts what hangs, not what is slow
	defer cancel()
	cmd := exec.CommandContext(ctx, bench, "-binary", binary, "-json", "-seconds", "0.3", "-rounds", "1", "-most", "10")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it cleans up
	cmd.Stderr = t.Output()
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	checkRequests(t, got)
	checkNeighbours(t, got)
	checkTasks(t, got)
	var out bytes.Buffer
	if err := got.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"16 connection(s)", "the task's first 200", "keeper included", "hostile", "busy callers", "few tasks", "many tasks", "own stop", "checks a second", "GET stats once a second", "after SIGKILL", "what allocations share"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

// checkRequests looks at what was measured of requests, of a start and of an idle server.
func checkRequests(t *testing.T, got report) {
	t.Helper()
	if len(got.Throughput) != len(connections) || got.Throughput[0].Ratio.Median <= 0 {
		t.Errorf("throughput: %+v", got.Throughput)
	}
	if got.Start == nil || got.Start.Task.Median < got.Start.TaskMain.Min || got.Start.TaskMain.Min <= 0 {
		t.Errorf("start: %+v", got.Start)
	}
	if got.Memory == nil || got.Memory.Ours.Processes < 1 || got.Memory.Ours.PSS <= 0 || got.Memory.Ours.PSS > got.Memory.Ours.RSS {
		t.Errorf("memory: %+v", got.Memory)
	}
	if len(got.Attack) != 2 || got.Attack[0].Statuses[200] == 0 || got.Attack[1].Statuses[200] != 0 || got.Attack[1].Flood <= 0 {
		t.Errorf("attack: %+v", got.Attack)
	}
}

// checkNeighbours looks at what was measured of busy neighbours: all that they ask is answered.
func checkNeighbours(t *testing.T, got report) {
	t.Helper()
	n := got.Neighbours
	if n == nil || n.Alone.P99 <= 0 || n.Beside.P99 <= 0 || n.Flood <= 0 || len(n.Statuses) != 1 || n.Statuses[200] == 0 {
		t.Errorf("neighbours: %+v", n)
	}
}

// checkTasks looks at what was measured of groups of tasks.
func checkTasks(t *testing.T, got report) {
	t.Helper()
	if len(got.Keeper) != 2 || got.Keeper[1].Keeper.PSS.Median <= 0 || got.Keeper[1].Keeper.Each == (figure{}) || got.Keeper[0].Keeper.Files <= 0 {
		t.Errorf("keeper: %+v", got.Keeper)
	}
	if len(got.Tasks) != 1 || got.Tasks[0].Tasks != 10 || got.Tasks[0].Agent.PSS.Median <= 0 {
		t.Errorf("tasks: %+v", got.Tasks)
	}
	if r := got.Restart; r == nil || r.Restart.Min <= 0 || r.OwnStop.Min <= 0 || r.OwnStart.Min <= 0 || r.Beyond.Max > r.Restart.Max {
		t.Errorf("restart: %+v", r)
	}
	if len(got.Idle) != 2 || got.Idle[0].Checks != 0 || got.Idle[1].Checks != 10 || got.Idle[1].Agent.Max > 100 {
		t.Errorf("idle: %+v", got.Idle)
	}
	if len(got.Stats) != 2 || got.Stats[1].Processes != 10 || got.Stats[0].Bare <= 0 || got.Stats[1].Asked.Max <= 0 {
		t.Errorf("stats: %+v", got.Stats)
	}
	if r := got.Shared; r == nil || r.Put.Min <= 0 || r.Get.Min <= 0 || r.WakeMedian.Min <= 0 || r.WakeLast.Min < r.WakeMedian.Min || r.PerEntries <= 0 {
		t.Errorf("shared: %+v", r)
	}
	if r := got.Services; r == nil || r.Register.Min <= 0 || r.Again.Min <= 0 || r.Seen.Min <= 0 || r.List.Min <= 0 || r.Get.Min <= 0 || r.Deregister.Min <= 0 {
		t.Errorf("services: %+v", r)
	}
	if len(got.Resume) != 1 || got.Resume[0].Tasks != 1 || got.Resume[0].Resume.Min <= 0 {
		t.Errorf("resume: %+v", got.Resume)
	}
}

// build builds a program as `make build` does, without the race detector: it makes every process end a second later.
func build(ctx context.Context, t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return path
}

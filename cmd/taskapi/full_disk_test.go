package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// TestRunOnAFullDisk says why there is no allocation, also when the log can't, and leaves no directory of an allocation
// that has not got as far as its task, however much room there is.
func TestRunOnAFullDisk(t *testing.T) {
	t.Parallel()
	for pages := range 8 {
		for _, detach := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d pages, detach %v", pages, detach), func(t *testing.T) {
				t.Parallel()
				small := disktest.Mount(t, "size=1m,mode=711")
				room := writeFile(t, filepath.Join(small.Dir, "room"), strings.Repeat("x", pages*os.Getpagesize()))
				small.Fill()
				must.OK(t, os.Remove(room))
				p := startCommand(t, self(t), "run", "--data-dir", small.Dir, fmt.Sprintf("--detach=%v", detach),
					jobFile(t, trueJob))
				err := p.Wait()
				out := p.out.String()
				if err != nil && !strings.Contains(out, "no space left on device") && !strings.Contains(out, "; make room on ") {
					t.Errorf("%v: %q", err, out)
				}
				if err == nil && pages == 0 {
					t.Errorf("it has succeeded: %q", out)
				}
				dirs := must.Get(datadir.Dir(small.Dir).IDs())(t)
				for _, id := range dirs {
					if dir := datadir.Dir(small.Dir).Alloc(id); !exists(filepath.Join(dir, "t")) {
						left, _ := os.ReadDir(dir)
						t.Errorf("it has left %v: %q", left, out)
					}
				}
			})
		}
	}
}

// TestAnEndThatCanNotBeSaved: no command says that a task runs which has ended while there was no room to save that.
func TestAnEndThatCanNotBeSaved(t *testing.T) {
	t.Parallel()
	data, may := shortDir(t), filepath.Join(t.TempDir(), "end")
	p := startCommand(t, self(t), "run", "--data-dir", data, "--alloc-id", testAllocID, jobFile(t, strings.Replace(
		trueJob, `"/bin/true"`, fmt.Sprintf(`"/bin/sh"
        args    = ["-c", "echo started; until test -e %s; do sleep 0.05; done"]`, may), 1)))
	dir, copied := datadir.Dir(data), datadir.Dir(t.TempDir())
	must.OK(t, os.MkdirAll(copied.Alloc(testAllocID), 0o700))
	r := &running{t: t}
	r.eventually("saved as running", func() bool { // read in a copy, since the process has the file
		content, _ := os.ReadFile(dir.State(testAllocID))
		must.OK(t, os.WriteFile(copied.State(testAllocID), content, 0o600))
		saved, err := copied.Saved(testAllocID)
		return err == nil && saved.Alloc.ClientStatus == "running"
	})
	// What a file shows may not be synced yet, and goes with a write that fails after it. This change is answered once
	// it is saved, and all before it.
	code := cli.Run(t.Context(), []string{"api", "--data-dir", data, "-X", "PUT", "-d",
		`{"Task": "t", "ScheduleState": "scheduled"}`, "/v1/client/allocation/" + testAllocID + "/pause"},
		testEnvironment(io.Discard, t.Output()))
	if code != 0 {
		t.Fatalf("a change was refused: %d", code)
	}
	must.OK(t, unix.Prlimit(p.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{}, nil)) // it writes no byte more
	writeFile(t, may, "")
	_ = p.Wait() // whatever its code
	if saved, err := dir.Saved(testAllocID); err != nil || saved.Alloc.ClientStatus != "running" {
		t.Fatalf("the end was saved: %v %v", saved, err)
	}
	for command, want := range map[string]string{
		"ps":                    "t     not running",
		"status":                "not running (its taskapi has exited)",
		"status " + testAllocID: "Its tasks have ended",
	} {
		args := append(strings.Fields(command), "--data-dir", data)
		var out, stderr polltest.Log
		code := cli.Run(t.Context(), args, testEnvironment(&out, &stderr))
		got := out.String()
		others := strings.ReplaceAll(got, "not running", "")
		if code != 0 || !strings.Contains(got, want) || strings.Contains(others, "running") {
			t.Errorf("taskapi %s: %d\n%s%s\nwant %q", command, code, got, stderr.String(), want)
		}
	}
}

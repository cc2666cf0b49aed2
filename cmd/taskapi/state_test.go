package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
)

// stateVerbRun runs a verb of taskapi state.
func stateVerbRun(t *testing.T, dataDir, verb string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(t.Context(), []string{"state", verb, "--data-dir", dataDir, testAllocID}, testEnvironment(&out, &errs))
	return code, out.String(), errs.String()
}

// leftState returns a data directory with the state of an allocation that nobody runs.
func leftState(t *testing.T) (dataDir, path string) {
	t.Helper()
	dataDir = t.TempDir()
	path = datadir.Dir(dataDir).State(testAllocID)
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
	db := must.Get(state.Open(path, version))(t)
	defer db.Close()
	must.OK(t, db.Put(interfaces.Saved{Alloc: &api.Allocation{ID: testAllocID, TaskGroup: "g"}}))
	return dataDir, path
}

// TestStateOfAnotherTaskapi is left to that one, and never taken for damaged.
func TestStateOfAnotherTaskapi(t *testing.T) {
	for _, c := range []struct {
		name   string
		format uint32
		says   string
		is     error
	}{
		{"older", 2, "written by an older taskapi: stop the allocation with that binary first", state.ErrOlder},
		{"newer", 7, "written by a newer taskapi: taskapi 3.1.4 wrote it in format 7", state.ErrNewer},
	} {
		t.Run(c.name, func(t *testing.T) {
			dataDir, path := leftState(t)
			data := must.Read(t, path)
			testOther(t, dataDir, path, inFormat(data, c.format), c.says, c.is)
		})
	}
}

// inFormat returns a state as taskapi 3.1.4 would have written it, in another format.
func inFormat(data []byte, format uint32) []byte {
	const header = 128 // its checksum covers the rest of it
	binary.BigEndian.PutUint32(data[8:], format)
	copy(data[24:header], "3.1.4\x00\x00\x00\x00")
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	binary.BigEndian.PutUint32(data[12:], crc32.Update(crc32.Checksum(data[:12], castagnoli), castagnoli, data[16:header]))
	return data
}

func testOther(t *testing.T, dataDir, path string, data []byte, says string, is error) {
	t.Helper()
	writeFile(t, path, string(data))
	for _, verb := range []string{"dump", "repair"} {
		code, stdout, stderr := stateVerbRun(t, dataDir, verb)
		if code != base.ExitFailed || stdout != "" || !strings.Contains(stderr, says) {
			t.Errorf("%s: code %d, stdout %q, stderr %q", verb, code, stdout, stderr)
		}
	}
	var out, errs bytes.Buffer
	for _, command := range [][]string{{"status"}, {"status", testAllocID}, {"takeover", testAllocID},
		{"gc", testAllocID}} {
		errs.Reset()
		code := cli.Run(t.Context(), append([]string{command[0], "--data-dir", dataDir}, command[1:]...),
			testEnvironment(&out, &errs))
		if code != base.ExitFailed || !strings.Contains(errs.String(), says) || strings.Contains(errs.String(), "damaged") {
			t.Errorf("%s: code %d, stderr %q", command, code, errs.String())
		}
	}
	if !strings.Contains(out.String(), "\n115ef685  ?     unknown ") {
		t.Errorf("status: %s", out.String())
	}
	out.Reset()
	errs.Reset()
	code := cli.Run(t.Context(), []string{"stop", "--data-dir", dataDir, testAllocID}, testEnvironment(&out, &errs))
	if code != base.ExitFailed || out.Len() > 0 || !strings.Contains(errs.String(), "can't be stopped gracefully") {
		t.Errorf("stop: code %d, stdout %q, stderr %q; want it left alone", code, out.String(), errs.String())
	}
	out.Reset()
	code = cli.Run(t.Context(), []string{"stop", "--now", "--data-dir", dataDir, testAllocID},
		testEnvironment(&out, &errs))
	if code != base.ExitOK || !strings.Contains(out.String(), "no process is running") {
		t.Errorf("stop --now: code %d, stdout %q, stderr %q; want its tasks killed", code, out.String(), errs.String())
	}
	if _, err := datadir.Dir(dataDir).Peek(testAllocID); !errors.Is(err, is) {
		t.Errorf("%v, want %v", err, is)
	}
}

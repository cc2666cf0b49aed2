package keeper_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
)

// resident returns a line of /proc/PID/status, in KiB.
func resident(t *testing.T, pid int, key string) int {
	t.Helper()
	text := must.Read(t, fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			n := must.Get(strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB")))(t)
			return n
		}
	}
	t.Fatalf("no %s", key)
	return 0
}

// TestALongLineTakesLittleMemory in the keeper: its resident set never comes near the line.
func TestALongLineTakesLittleMemory(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	spec := shell(dir, "t", fmt.Sprintf("head -c %d /dev/zero", 200<<20))
	spec.Logs.MaxFiles, spec.Logs.MaxFileBytes = 2, 4<<20
	before := resident(t, c.Keeper().PID, "VmHWM")
	run(t, c, spec)
	if exit, err := c.Wait(t.Context(), "t"); err != nil || !exit.Successful() {
		t.Fatalf("%+v, %v", exit, err)
	}
	must.Get(c.KillTree(t.Context(), proctest.Latest(t, c, "t")))(t)
	grown := resident(t, c.Keeper().PID, "VmHWM") - before
	t.Logf("the keeper's resident set grew by %d KiB at most", grown)
	// two buffers of 64 KiB, and what of the program was not touched before; the race detector doubles it
	if grown > 32<<10 {
		t.Errorf("the keeper's resident set grew by %d KiB for a line of 200 MiB", grown)
	}
}

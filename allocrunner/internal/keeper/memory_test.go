package keeper_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// TestMemoryIsGivenBack when nothing happens any more: most of what the program's initialization has touched of its
// file. And the keeper works as before.
func TestMemoryIsGivenBack(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	run(t, c, shell(dir, "t", "exec sleep 1000"))
	pid := c.Keeper().PID
	for before := resident(t, pid, "RssFile"); resident(t, pid, "RssFile") > before/2; unix.Poll(nil, 20) {
	}
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit != nil {
		t.Errorf("%+v, %v", list, err)
	}
	run(t, c, shell(dir, "u", "exit 2"))
	if exit, err := c.Wait(t.Context(), "u"); err != nil || exit.ExitCode != 2 {
		t.Errorf("%+v, %v", exit, err)
	}
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

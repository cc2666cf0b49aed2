package proctree_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestLimitsOfVersion2 has files in place of the kernel's, which not every machine has.
func TestLimitsOfVersion2(t *testing.T) {
	for name, tc := range map[string]struct {
		limits proctree.Limits
		want   map[string]string
	}{
		"memory": {proctree.Limits{Memory: 30 << 20}, map[string]string{"memory.max": "31457280", "memory.low": "0"}},
		"memory_max": {proctree.Limits{Memory: 60 << 20, MemoryLow: 30 << 20},
			map[string]string{"memory.max": "62914560", "memory.low": "31457280"}},
		"no bound": {proctree.Limits{MemoryLow: 1 << 20}, map[string]string{"memory.max": "max", "memory.low": "1048576"}},
		"cpu": {proctree.Limits{CPUShares: 1024}, map[string]string{"memory.max": "max", "memory.low": "0",
			"cpu.weight": "39"}},
		"little cpu": {proctree.Limits{CPUShares: 1}, map[string]string{"memory.max": "max", "memory.low": "0",
			"cpu.weight": "1"}},
		"much cpu": {proctree.Limits{CPUShares: 1 << 30}, map[string]string{"memory.max": "max", "memory.low": "0",
			"cpu.weight": "10000"}},
	} {
		dir := t.TempDir()
		same.Error(t, nil, proctree.Bound2(dir, tc.limits), name)
		got := map[string]string{}
		files, _ := filepath.Glob(dir + "/*") // the pattern is a constant
		for _, file := range files {
			text := must.Get(os.ReadFile(file))(t)
			got[filepath.Base(file)] = string(text)
		}
		same.As(t, tc.want, got, name)
	}
}

// limited returns an env whose tasks have a limit of memory.
func limited(t *testing.T, bytes int64) *env {
	t.Helper()
	if err := proctree.CanLimit(); err != nil {
		t.Skip(err)
	}
	e := newTrees(t, proctree.Config{Name: fmt.Sprintf("limits-%d", os.Getpid())})
	e.limits = proctree.Limits{Memory: bytes, CPUShares: 100}
	return e
}

// hungry is a script that needs the given bytes of memory.
const hungry = `x=$(head -c %d /dev/zero | tr '\0' x); exit 7`

func TestMemoryIsBounded(t *testing.T) {
	e := limited(t, 20<<20)
	small, big := e.start("small", fmt.Sprintf(hungry, 1<<20)), e.start("big", fmt.Sprintf(hungry, 60<<20))
	if exit := e.wait(small); exit.ExitStatus() != 7 || small.OOMKilled() {
		t.Errorf("within the limit: %+v, killed %v", exit, small.OOMKilled())
	}
	if exit := e.wait(big); exit.Signal() != unix.SIGKILL || !big.OOMKilled() {
		t.Errorf("beyond the limit: %+v, killed %v", exit, big.OOMKilled())
	}
	if small.Unlimited() != nil || big.Unlimited() != nil {
		t.Error(small.Unlimited(), big.Unlimited())
	}
}

// TestCgroupsWithLimitsAreRemoved with the tree, and by the search for orphans if their supervisor was killed.
func TestCgroupsWithLimitsAreRemoved(t *testing.T) {
	e := limited(t, 20<<20)
	r := e.fifo()
	task := e.start("t", `cat /proc/self/cgroup >$FIFO; echo >$FIFO; exec sleep 1000`)
	var dirs []string
	for {
		line := must.Get(r.ReadString('\n'))(t)
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
		if path == "" && len(dirs) > 0 {
			break
		}
		if strings.Contains(path, "taskapi-limits-") {
			dirs = append(dirs, path)
		}
	}
	if len(dirs) == 0 {
		t.Fatal("the task is in no cgroup of its own")
	}
	e.kill(task)
	for _, dir := range dirs {
		found, _ := filepath.Glob("/sys/fs/cgroup/*/" + dir) // the path has no pattern
		if len(found) > 0 {
			t.Errorf("left: %v", found)
		}
	}
}

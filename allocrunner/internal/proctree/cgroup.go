package proctree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// cgroups makes a cgroup v2 for each task where that is possible: it is the one fence that no process of the task leaves by
// forking, and the kernel kills all inside at once. No controller is needed, so none is enabled.
type cgroups struct {
	name string
	off  bool // not to be used

	mu     sync.Mutex // guards all below; held during file I/O on a kernel file system, which does not block
	parent string     // the directory to work in, empty: not found yet
	dir    string     // ours inside parent, empty: not made yet
}

// prefix begins the names of all cgroups that are made under a name.
func prefix(name string) string {
	if name == "" {
		return "taskapi-"
	}
	return "taskapi-" + name + "-"
}

// taskPrefix begins the name of a task's cgroup.
const taskPrefix = "task."

// errOff is why there is none where none is to be used.
var errOff = errors.New("cgroups are not to be used")

// add makes the task's cgroup. One that can't be made is nil, which all methods of *cgroup take for an empty one; the next may fare better.
func (c *cgroups) add(task string) (*cgroup, error) {
	if c.off {
		return nil, errOff
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for again := false; ; again = true {
		if err := c.makeLocked(); err != nil {
			return nil, err
		}
		g := &cgroup{dir: filepath.Join(c.dir, taskPrefix+task)}
		err := os.Mkdir(g.dir, 0o755)
		switch {
		case err == nil, errors.Is(err, os.ErrExist):
			return g, nil
		case !errors.Is(err, os.ErrNotExist) || again:
			return nil, err
		}
		c.dir = "" // somebody has removed it while it was empty
	}
}

// makeLocked makes our own directory in the parent.
func (c *cgroups) makeLocked() error {
	if c.dir != "" {
		return nil
	}
	if c.parent == "" {
		parent, err := ownCgroup()
		if err != nil {
			return err
		}
		c.parent = parent
	}
	self, err := proc.Read(os.Getpid())
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		dir := filepath.Join(c.parent, fmt.Sprintf("%s%d-%d-%d", prefix(c.name), self.PID, self.Start, n))
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, os.ErrExist) && n < 1000 {
			continue
		}
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
			os.Remove(dir)
			return fmt.Errorf("this kernel (before 5.14) has no cgroup.kill: %w", err)
		}
		c.dir = dir
		return nil
	}
}

func (c *cgroups) dirName() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dir
}

func (c *cgroups) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dir != "" {
		_ = removeCgroup(c.dir) // an empty directory of the kernel's, no harm if it stays
		c.dir = ""
	}
}

// named returns the cgroups of this machine that are our user's and were made under a name, as far as this process sees them.
func named(name string) []string {
	mounts := proc.Mounts()
	i := slices.IndexFunc(mounts, func(m proc.Mount) bool { return m.HasCgroups("") })
	if i < 0 || name == "" {
		return nil
	}
	var found []string
	var look func(dir string)
	look = func(dir string) {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || st.Nlink == 2 { // there is none below
			return
		}
		entries, _ := os.ReadDir(dir) // gone
		for _, entry := range entries {
			if !entry.IsDir() {
				continue
			}
			path := filepath.Join(dir, entry.Name())
			if !strings.HasPrefix(entry.Name(), prefix(name)) {
				look(path)
			} else if unix.Lstat(path, &st) == nil && st.Uid == uint32(os.Geteuid()) {
				found = append(found, path)
			}
		}
	}
	look(mounts[i].Dir)
	return found
}

// ownCgroup returns the directory of the cgroup v2 that this program is in.
func ownCgroup() (string, error) {
	path, ok := proc.Cgroups(os.Getpid())[""]
	if !ok {
		return "", errors.New("this program is in no cgroup v2")
	}
	mounted, below := proc.FindCgroup(proc.Mounts(), "", path)
	if mounted == "" {
		return "", errors.New("no cgroup v2 is mounted")
	}
	return filepath.Join(mounted, below), nil
}

// has reports whether a process is in one of the set's cgroups.
func (c *cgroups) has(pid int) bool {
	return slices.ContainsFunc(cgroupsBelow(c.dirName()), func(dir string) bool { return slices.Contains((&cgroup{dir: dir}).pids(), pid) })
}

// cgroup is that of one run of one task. A nil *cgroup is an empty one.
type cgroup struct{ dir string }

// below makes a cgroup inside.
func (g *cgroup) below(name string) (*cgroup, error) {
	b := &cgroup{dir: filepath.Join(g.dir, name)}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return nil, err
	}
	return b, nil
}

// open opens the directory for clone3.
func (g *cgroup) open() (*os.File, error) {
	return os.OpenFile(g.dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// kill sends SIGKILL to all inside, descending cgroups included.
func (g *cgroup) kill() error {
	if g == nil {
		return nil
	}
	return os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
}

// pids returns the processes directly inside.
func (g *cgroup) pids() []int {
	if g == nil {
		return nil
	}
	text, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	var pids []int
	for line := range strings.Lines(string(text)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// populated reports whether anything lives inside, descending cgroups included.
func (g *cgroup) populated() bool {
	if g == nil {
		return false
	}
	events, _ := proc.Numbers(filepath.Join(g.dir, "cgroup.events"))
	return events["populated"] == 1
}

// oomKilled reports whether the kernel has killed something inside for want of memory. Without the memory controller nothing is known,
// and nothing could have been the cgroup's fault.
func (g *cgroup) oomKilled() bool {
	if g == nil {
		return false
	}
	events, _ := proc.Numbers(filepath.Join(g.dir, "memory.events"))
	return events["oom_kill"] > 0
}

// remove removes the empty cgroup.
func (g *cgroup) remove() {
	if g != nil {
		_ = removeCgroup(g.dir) // as in close
	}
}

// removeCgroup removes a cgroup and what a task may have made below it. Files in it are the kernel's and go with it.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			_ = removeCgroup(filepath.Join(dir, entry.Name())) // shown by the parent's failure
		}
	}
	return unix.Rmdir(dir)
}

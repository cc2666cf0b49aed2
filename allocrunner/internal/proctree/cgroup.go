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

// cgroups makes a cgroup v2 for each task if that is possible. No process of the task can leave it by forking, and the
// kernel kills all processes in it at once. That needs no controller, so none is enabled.
type cgroups struct {
	name string
	off  bool // not to be used

	mu     sync.Mutex // guards all below; held during file I/O on a kernel file system, which does not block
	parent string     // the directory of our cgroup; empty: not found yet
	dir    string     // our own cgroup in parent; empty: not made yet

	version1 map[string]string // our own cgroups of version 1, by controller; made for limits alone
}

// prefix returns the beginning of the names of all cgroups that are made under a name.
func prefix(name string) string {
	if name == "" {
		return "taskapi-"
	}
	return "taskapi-" + name + "-"
}

// ownName returns the name of this program's cgroups for its tasks. No other program has had it.
func (c *cgroups) ownName() (string, error) {
	self, err := proc.Read(os.Getpid())
	return fmt.Sprintf("%s%d-%d", prefix(c.name), self.PID, self.Start), err
}

// taskPrefix begins the name of a task's cgroup.
const taskPrefix = "task."

// errOff is the reason for having no cgroup if none is to be used.
var errOff = errors.New("cgroups are not to be used")

// add makes a task's cgroup, where limits can be set if that is wanted. If that fails, it returns none.
func (c *cgroups) add(task string, limited bool) (cgroup, error) {
	if c.off {
		return "", errOff
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for again := false; ; again = true {
		if err := c.makeLocked(limited); err != nil {
			return "", err
		}
		g := cgroup(filepath.Join(c.dir, taskPrefix+task))
		err := os.Mkdir(string(g), 0o755)
		switch {
		case err == nil, errors.Is(err, os.ErrExist):
			return g, nil
		case !errors.Is(err, os.ErrNotExist) || again:
			return "", err
		}
		c.dir = "" // somebody has removed it while it was empty
	}
}

// makeLocked makes our own directory in the parent.
func (c *cgroups) makeLocked(limited bool) error {
	if c.dir != "" {
		return nil
	}
	if c.parent == "" {
		parent, err := ownCgroup()
		if err != nil {
			return err
		}
		c.parent = parent
		if limited {
			c.parent = home(parent)
		}
	}
	name, err := c.ownName()
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		dir := filepath.Join(c.parent, fmt.Sprintf("%s-%d", name, n))
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
		if limited {
			_ = turnOn(dir) // bound says what is missing
		}
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
		_ = removeCgroup(c.dir) // an empty directory of the kernel's; it does no harm if it stays
		c.dir = ""
	}
	for _, dir := range c.version1 {
		_ = removeCgroup(dir)
	}
}

// named returns the cgroups of this machine that are our user's and were made under a name, as far as this process sees
// them.
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

// has reports whether a process is in one of the tasks' cgroups.
func (c *cgroups) has(pid int) bool { return slices.Contains(PIDsBelow(c.dirName()), pid) }

// cgroup is the directory of a cgroup, such as that of one run of a task. The empty one is no cgroup; it has no
// process.
type cgroup string

// file returns the path of one of its files, which no cgroup does not have.
func (g cgroup) file(name string) string {
	if g == "" {
		return ""
	}
	return filepath.Join(string(g), name)
}

// below makes a cgroup inside.
func (g cgroup) below(name string) (cgroup, error) {
	dir := g.file(name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	return cgroup(dir), nil
}

// kill sends SIGKILL to all processes in it and in the cgroups below.
func (g cgroup) kill() error { return os.WriteFile(g.file("cgroup.kill"), []byte("1"), 0) }

// pids returns the processes directly in it.
func (g cgroup) pids() []int {
	text, _ := os.ReadFile(g.file("cgroup.procs"))
	var pids []int
	for line := range strings.Lines(string(text)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// populated reports whether a process lives in it or in the cgroups below.
func (g cgroup) populated() bool {
	events, _ := proc.Numbers(g.file("cgroup.events"))
	return events["populated"] == 1
}

// oomKilled reports whether the kernel has killed a process in it because memory ran out. Without the memory controller
// that is unknown. Version 1 counts the kills in memory.oom_control.
func (g cgroup) oomKilled() bool {
	for _, file := range []string{"memory.events", "memory.oom_control"} {
		if events, _ := proc.Numbers(g.file(file)); events["oom_kill"] > 0 {
			return true
		}
	}
	return false
}

// remove removes the empty cgroup.
func (g cgroup) remove() { _ = removeCgroup(string(g)) } // as in close

// removeCgroup removes a cgroup and the cgroups that a task may have made below it. The files in them are the kernel's.
func removeCgroup(dir string) error {
	if err := unix.Rmdir(dir); err != unix.EBUSY { // it mostly has none below it
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			_ = removeCgroup(filepath.Join(dir, entry.Name())) // removing the parent fails then, too
		}
	}
	return unix.Rmdir(dir)
}

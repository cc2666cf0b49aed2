package proctree

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// Limits bound what the processes of a task use together. The zero value bounds nothing.
type Limits struct {
	Memory    int64 // bytes; 0 for no bound
	MemoryLow int64 // bytes that the kernel takes back last when the machine's memory is short; 0 for none
	// CPUShares is the weight of the task beside the other tasks of its allocation when they all want a CPU, in the
	// measure of version 1; 0 for the kernel's default, 1024.
	CPUShares int64
	CPUs      string // the CPUs that the processes may use, as cpuset(7) lists them; empty for all
}

// The least and the greatest weight of version 1 (kernel, sched.h: MIN_SHARES and MAX_SHARES).
const (
	minShares = 2
	maxShares = 1 << 18
)

// weight returns the weight of version 2, 1 to 10000, for shares of version 1, as the OCI runtimes convert it.
func weight(shares int64) int64 {
	shares = min(max(shares, minShares), maxShares)
	return 1 + (shares-minShares)*9999/(maxShares-minShares)
}

// errNoController is the reason why limits are not enforced on a machine without controllers for this program.
var errNoController = errors.New("this program can use no cgroup with a memory controller")

// bound sets the limits of a task in its cgroup or, where version 2 has no controllers, in cgroups of version 1. It
// returns the latter, also with the error of CPUs alone. Errors: why the limits are not enforced.
func (c *cgroups) bound(task string, l Limits, g cgroup) (version1 []cgroup, err error) {
	if l == (Limits{}) {
		return nil, nil
	}
	if c.off {
		return nil, errOff
	}
	if _, err := os.Stat(g.file("memory.max")); err == nil {
		if err := g.bound2(l); err != nil {
			return nil, err
		}
		return nil, c.pin2(g, l.CPUs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, bound := range []func(cgroup, Limits) error{cgroup.boundMemory1, cgroup.boundCPU1} {
		g, err := c.add1Locked(controllers[i], task)
		if err == nil {
			version1 = append(version1, g)
			err = bound(g, l)
		}
		if err != nil {
			for _, g := range version1 {
				g.remove()
			}
			return nil, err
		}
	}
	if l.CPUs == "" {
		return version1, nil
	}
	pinned, err := c.pin1Locked(task, l.CPUs)
	if err == nil {
		version1 = append(version1, pinned)
	}
	return version1, err
}

// bound2 sets limits in a cgroup of version 2.
func (g cgroup) bound2(l Limits) error {
	err := g.set("memory.max", orMax(l.Memory))
	if err == nil {
		err = g.set("memory.low", strconv.FormatInt(l.MemoryLow, 10))
	}
	if err == nil && l.CPUShares > 0 {
		err = g.set("cpu.weight", strconv.FormatInt(weight(l.CPUShares), 10))
	}
	return err
}

func orMax(bytes int64) string {
	if bytes == 0 {
		return "max"
	}
	return strconv.FormatInt(bytes, 10)
}

// boundMemory1 and boundCPU1 set limits in a controller's cgroup of version 1.
func (g cgroup) boundMemory1(l Limits) error {
	limit, soft := int64(-1), int64(-1)
	if l.Memory > 0 {
		limit = l.Memory
	}
	if l.MemoryLow > 0 {
		soft = l.MemoryLow
	}
	if err := g.set("memory.limit_in_bytes", strconv.FormatInt(limit, 10)); err != nil {
		return err
	}
	return g.set("memory.soft_limit_in_bytes", strconv.FormatInt(soft, 10))
}

func (g cgroup) boundCPU1(l Limits) error {
	if l.CPUShares == 0 {
		return nil
	}
	return g.set("cpu.shares", strconv.FormatInt(max(l.CPUShares, minShares), 10))
}

func (g cgroup) set(file, value string) error { return os.WriteFile(g.file(file), []byte(value), 0) }

// add1Locked makes a task's cgroup in a controller of version 1, below our own one.
func (c *cgroups) add1Locked(controller, task string) (cgroup, error) {
	dir := c.version1[controller]
	if dir == "" {
		own := ownCgroup1(controller)
		if own == "" {
			return "", errNoController
		}
		name, err := c.ownName()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(own, name)
	}
	g := cgroup(filepath.Join(dir, taskPrefix+task))
	if err := os.MkdirAll(string(g), 0o755); err != nil {
		return "", err
	}
	if c.version1 == nil {
		c.version1 = map[string]string{}
	}
	c.version1[controller] = dir
	return g, nil
}

// ownCgroup1 returns the directory of this program's cgroup in a controller of version 1; empty if there is none.
func ownCgroup1(controller string) string {
	path, ok := proc.Cgroups(os.Getpid())[controller]
	if !ok {
		return ""
	}
	mounted, below := proc.FindCgroup(proc.Mounts(), controller, path)
	if mounted == "" {
		return ""
	}
	return filepath.Join(mounted, below)
}

// named1 returns the cgroups of version 1 that an earlier program made under a name, in our own one.
func named1(name string) (found []cgroup) {
	if name == "" {
		return nil
	}
	for _, controller := range append(slices.Clip(controllers), cpuset) {
		own := ownCgroup1(controller)
		entries, _ := os.ReadDir(own) // there is no such controller
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), prefix(name)) {
				found = append(found, cgroup(filepath.Join(own, entry.Name())))
			}
		}
	}
	return found
}

// controllers are those that limits need.
var controllers = []string{"memory", "cpu"}

// topSlice is where the tasks' cgroups of root are if they can't be in this program's own one.
const topSlice = "taskapi.slice"

// home returns the directory of version 2 in which the tasks' cgroups are made, with the controllers on that limits
// need if that can be; else our own. Where processes are in a cgroup, the kernel turns no controller on for those below
// it (cgroups(7), "no internal processes").
func home(own string) string {
	dir := place(own)
	if dir == "" || turnOn(dir) != nil {
		return own
	}
	if !isTop(dir) || dir == own {
		return dir
	}
	slice := filepath.Join(dir, topSlice)
	if err := os.Mkdir(slice, 0o755); err != nil && !errors.Is(err, os.ErrExist) || turnOn(slice) != nil {
		return own
	}
	return slice
}

// place returns the cgroup of version 2 in which controllers may be on for those below: the uppermost one for root, or
// that above our own if systemd has delegated it, as with DelegateSubgroup=. It is empty for none. Our own can't be it,
// even if we moved our processes out of the way: systemd would then start no other process in it while tasks run.
func place(own string) string {
	if isTop(own) {
		return own
	}
	if above := filepath.Dir(own); delegated(above) {
		return above
	}
	if mounted, _ := proc.FindCgroup(proc.Mounts(), "", "/"); os.Geteuid() == 0 && isTop(mounted) {
		return mounted
	}
	return ""
}

// isTop reports whether a directory is the machine's uppermost cgroup of version 2, which may have processes besides
// controllers. It alone has no type.
func isTop(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.type"))
	return dir != "" && errors.Is(err, os.ErrNotExist)
}

// CanLimit returns why this program can't set limits; nil if it can, as far as that shows without a change.
func CanLimit() error {
	if own, err := ownCgroup(); err == nil {
		dir := place(own)
		if hasControllers(dir) && unix.Access(filepath.Join(dir, "cgroup.subtree_control"), unix.W_OK) == nil {
			return nil
		}
	}
	for _, controller := range controllers {
		if own := ownCgroup1(controller); own == "" || unix.Access(own, unix.W_OK) != nil {
			return errNoController
		}
	}
	return nil
}

// delegated reports whether systemd has given a cgroup to its processes (org.freedesktop.systemd, "user.delegate").
func delegated(dir string) bool {
	var value [1]byte
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, name, value[:]); err == nil && n == 1 && value[0] == '1' {
			return true
		}
	}
	return false
}

// turnOn turns the controllers on for the cgroups below a directory.
func turnOn(dir string) error {
	if !hasControllers(dir) {
		return errNoController
	}
	for _, controller := range controllers {
		if err := cgroup(dir).set("cgroup.subtree_control", "+"+controller); err != nil {
			return err
		}
	}
	return nil
}

// hasControllers reports whether the controllers can be turned on for the cgroups below a directory.
func hasControllers(dir string) bool {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers")) // no cgroup of version 2 has none
	there := strings.Fields(string(text))
	return !slices.ContainsFunc(controllers, func(one string) bool { return !slices.Contains(there, one) })
}

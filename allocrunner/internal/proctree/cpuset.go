package proctree

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuset is the controller that keeps processes on CPUs.
const cpuset = "cpuset"

// errNoCpuset is the reason why a task can use other CPUs than its own.
var errNoCpuset = errors.New(
	"this program can use no cgroup with a cpuset controller, so nothing keeps the task on its cores")

// pin2 keeps the processes of a cgroup of version 2 on CPUs. The controller is turned on for the first task that needs
// it.
func (c *cgroups) pin2(g cgroup, cpus string) error {
	if cpus == "" {
		return nil
	}
	if _, err := os.Stat(g.file("cpuset.cpus")); err != nil {
		dir := filepath.Dir(string(g))
		chain := []string{filepath.Dir(dir), dir}
		if filepath.Base(chain[0]) == topSlice { // which is ours; above a unit's cgroup, systemd rules
			chain = append([]string{filepath.Dir(chain[0])}, chain...)
		}
		for _, one := range chain {
			_ = cgroup(one).set("cgroup.subtree_control", "+"+cpuset) // the file is missing then
		}
	}
	if _, err := os.Stat(g.file("cpuset.cpus")); err != nil {
		return errNoCpuset
	}
	return g.set("cpuset.cpus", cpus)
}

// pin1Locked makes a cgroup of version 1 that keeps a task's processes on CPUs. A new cgroup has no CPU and no memory
// node, and no process can enter it before it has both.
func (c *cgroups) pin1Locked(task, cpus string) (cgroup, error) {
	own := ownCgroup1(cpuset)
	if own == "" {
		return "", errNoCpuset
	}
	g, err := c.add1Locked(cpuset, task)
	if err != nil {
		return "", err
	}
	ours := cgroup(filepath.Dir(string(g)))
	for _, file := range []string{"cpuset.mems", "cpuset.cpus"} {
		value, err := os.ReadFile(cgroup(own).file(file))
		if err != nil {
			return "", err
		}
		all := strings.TrimSpace(string(value))
		wanted := all
		if file == "cpuset.cpus" {
			wanted = cpus
		}
		if err := ours.set(file, all); err != nil {
			return "", err
		}
		if err := g.set(file, wanted); err != nil {
			g.remove()
			return "", err
		}
	}
	return g, nil
}

// CanPin returns why this program can't keep tasks on cores; nil if it can, as far as that shows without a change.
func CanPin() error {
	if own, err := ownCgroup(); err == nil {
		dir := place(own)
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if dir != "" && slices.Contains(strings.Fields(string(text)), cpuset) &&
			unix.Access(filepath.Join(dir, "cgroup.subtree_control"), unix.W_OK) == nil {
			return CanLimit()
		}
	}
	if own := ownCgroup1(cpuset); own == "" || unix.Access(own, unix.W_OK) != nil {
		return errNoCpuset
	}
	return CanLimit()
}

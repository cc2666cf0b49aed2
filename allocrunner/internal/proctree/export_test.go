package proctree

import (
	"runtime"

	"taskapi/internal/proc"
)

// NewIn is New with that directory to make the tasks' cgroups in.
func NewIn(dir string, cfg Config) *Trees {
	s := New(cfg)
	s.cgroups.parent = dir
	return s
}

// OOMKilled reads a cgroup's directory.
func OOMKilled(dir string) bool { return cgroup(dir).oomKilled() }

// AfterLook has every look at a process's children followed by a call.
func (s *Trees) AfterLook(do func()) {
	s.children = func(pid int) ([]int, error) {
		children, err := proc.Children(pid)
		do()
		return children, err
	}
}

// AwaitForgotten returns once a process that has ended is none of the root processes any more.
func (s *Trees) AwaitForgotten(pid int) {
	for s.own.has(pid) {
		runtime.Gosched()
	}
}

// Bound2 sets limits in the directory of a cgroup of version 2.
func Bound2(dir string, l Limits) error { return cgroup(dir).bound2(l) }

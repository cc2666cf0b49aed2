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

// AfterLook has every look at the machine's processes followed by a call.
func (s *Trees) AfterLook(do func()) {
	s.processes = func() (map[int]proc.Stat, error) {
		all, err := proc.All()
		do()
		return all, err
	}
}

// AwaitForgotten returns once a process that has ended is none of the root processes any more.
func (s *Trees) AwaitForgotten(pid int) {
	for s.own.has(pid) {
		runtime.Gosched()
	}
}

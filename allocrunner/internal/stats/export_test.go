package stats

import (
	"context"
	"os"
	"path/filepath"

	"taskapi/internal/proc"
)

// OwnDir returns the directory of this program's cgroup of a controller, or of version 2; empty when there is none.
func OwnDir(controller string) string {
	path, ok := proc.Cgroups(os.Getpid())[controller]
	mounted, below := proc.FindCgroup(mounts(), controller, path)
	if !ok || mounted == "" {
		return ""
	}
	return filepath.Join(mounted, below)
}

// ReadCPU1 reads the CPU time of a process's cgroup of version 1.
func ReadCPU1(pid int) (proc.CPUTime, error) {
	groups, paths := ownGroups{proc.Cgroups(os.Getpid())}, proc.Cgroups(pid)
	r, err := cpu1(groups.dir("cpuacct", paths), groups.dir("cpu", paths))
	return r.CPUTime, err
}

// Measure takes a sample, however fresh the last one is.
func (s *Sampler) Measure(ctx context.Context) error {
	_, _, err := s.measure(ctx)
	return err
}

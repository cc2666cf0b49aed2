package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"taskapi/internal/proc"
)

// OwnDir returns the directory of this program's cgroup of a controller, or of version 2; empty when there is none.
func OwnDir(controller string) string {
	path, ok := pathsOf(os.Getpid())[controller]
	for _, m := range mounts() {
		if ok && (controller == "" && len(m.controllers) == 0 || controller != "" && slices.Contains(m.controllers, controller)) {
			return filepath.Join(m.dir, strings.TrimPrefix(path, m.root))
		}
	}
	return ""
}

// ReadCPU1 reads the CPU time of a process's cgroup of version 1.
func ReadCPU1(pid int) (proc.CPUTime, error) {
	r, err := findGroups(os.Getpid()).version1(pid).cpu()
	return r.CPUTime, err
}

// Mounts returns the mounts in a text, a line each.
func Mounts(text string) []string {
	var all []string
	for _, m := range parseMounts(text) {
		all = append(all, fmt.Sprintf("%v %s %s", m.controllers, m.root, m.dir))
	}
	return all
}

// Measure takes a sample, however fresh the last one is.
func (s *Sampler) Measure(ctx context.Context) error {
	_, _, err := s.measure(ctx)
	return err
}

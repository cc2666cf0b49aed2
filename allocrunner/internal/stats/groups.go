package stats

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// mount is where a hierarchy of cgroups is mounted.
type mount struct {
	controllers []string // of version 1; none for version 2
	root, dir   string   // the cgroup that is the root there, and the directory
}

// mounts are those that this program sees. They are read once: a machine has them from its start.
var mounts = sync.OnceValue(func() []mount {
	text, _ := os.ReadFile("/proc/self/mountinfo") // without it there are no cgroups to be found
	return parseMounts(string(text))
})

// parseMounts reads mountinfo(5), whose lines are "36 35 98:0 ROOT MOUNTPOINT options - TYPE source options".
func parseMounts(text string) []mount {
	var all []mount
	for line := range strings.Lines(text) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 {
			continue
		}
		m := mount{root: strings.TrimSuffix(fields[3], "/"), dir: fields[4]}
		switch kind[0] {
		case "cgroup2":
			all = append(all, m)
		case "cgroup":
			m.controllers = strings.Split(kind[2], ",")
			all = append(all, m)
		}
	}
	return all
}

// ownGroups finds the cgroups of processes that are not those of the supervisor, by whom they are started: somebody has put the process there.
type ownGroups struct {
	mounts     []mount
	supervisor map[string]string
}

func findGroups(supervisor int) *ownGroups {
	return &ownGroups{mounts(), pathsOf(supervisor)}
}

// unified returns the directory of a process's cgroup of version 2, empty when it is the supervisor's.
func (g *ownGroups) unified(pid int) string { return g.dir("", pathsOf(pid)) }

// version1 returns the directories of a process's cgroups of version 1, without those that are the supervisor's.
func (g *ownGroups) version1(pid int) cgroup1 {
	if !slices.ContainsFunc(g.mounts, func(m mount) bool { return len(m.controllers) > 0 }) {
		return cgroup1{}
	}
	paths := pathsOf(pid)
	return cgroup1{g.dir("cpuacct", paths), g.dir("cpu", paths), g.dir("memory", paths)}
}

// dir returns the directory for a controller of version 1, or with an empty name for version 2.
func (g *ownGroups) dir(controller string, paths map[string]string) string {
	path, ok := paths[controller]
	if !ok || path == g.supervisor[controller] {
		return ""
	}
	for _, m := range g.mounts {
		if len(m.controllers) == 0 && controller != "" || controller != "" && !slices.Contains(m.controllers, controller) ||
			controller == "" && len(m.controllers) > 0 {
			continue
		}
		if below, ok := strings.CutPrefix(path, m.root); ok && strings.Trim(below, "/") != "" {
			return filepath.Join(m.dir, below)
		}
	}
	return ""
}

// pathsOf returns the cgroup that a process is in for each controller of version 1, and for version 2 under the empty name. Lines of
// /proc/PID/cgroup are "4:cpu,cpuacct:/path", and "0::/path" for version 2.
func pathsOf(pid int) map[string]string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup") // of nobody there is nothing to be read
	paths := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			paths[controller] = fields[2]
		}
	}
	return paths
}

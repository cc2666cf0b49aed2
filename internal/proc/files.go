package proc

import (
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Value returns the value of the first line "KEY: VALUE" with that key in a file such as /proc/cpuinfo; empty when
// there is none.
func Value(path, key string) string {
	for k, value := range Values(path) {
		if k == key {
			return value
		}
	}
	return ""
}

// Values yields the lines "KEY: VALUE" of a file such as /proc/meminfo. A file that can't be read has none.
func Values(path string) iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		text, _ := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			key, value, ok := strings.Cut(line, ":")
			if ok && !yield(strings.TrimSpace(key), strings.TrimSpace(value)) {
				return
			}
		}
	}
}

// Bytes returns the number of bytes in a value such as "1024 kB"; 0 when it is none.
func Bytes(value string) uint64 {
	kilobytes, _ := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 64)
	return kilobytes << 10
}

// Numbers reads the lines of a name and a number in a file such as a cgroup's memory.stat.
func Numbers(path string) (map[string]uint64, error) {
	text, err := os.ReadFile(path)
	numbers := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			numbers[name] = n
		}
	}
	return numbers, err
}

// Number reads a file of one number.
func Number(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// FirstUnprivilegedPort returns net.ipv4.ip_unprivileged_port_start (ip(7)), the first port that needs no privilege.
func FirstUnprivilegedPort() int {
	port, err := Number("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil {
		return 1024
	}
	return int(port)
}

// Megahertz returns the speed of a CPU of this machine: its base frequency, else its highest, else what the kernel
// measures now. It is 0 when the machine does not say.
func Megahertz() float64 {
	for _, name := range []string{"base_frequency", "cpuinfo_max_freq"} {
		if kilohertz, err := Number(filepath.Join("/sys/devices/system/cpu/cpu0/cpufreq", name)); err == nil {
			return float64(kilohertz) / 1000
		}
	}
	mhz, _ := strconv.ParseFloat(Value("/proc/cpuinfo", "cpu MHz"), 64) // stays 0
	return mhz
}

// Mount is a file system that is mounted where this process sees it.
type Mount struct {
	Device  string // MAJOR:MINOR
	Root    string // the directory of the file system that is mounted
	Dir     string // where
	Type    string
	Source  string
	Options string // of the file system, with commas between them
}

// Mounts returns what is mounted, in the kernel's order; nothing when that can't be read.
func Mounts() []Mount {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	return parseMounts(string(text))
}

// parseMounts reads mountinfo(5), whose lines are "36 35 98:0 ROOT DIR options - TYPE SOURCE OPTIONS".
func parseMounts(text string) []Mount {
	var all []Mount
	for line := range strings.Lines(text) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 {
			continue
		}
		all = append(all, Mount{fields[2], unescape.Replace(fields[3]), unescape.Replace(fields[4]), kind[0],
			unescape.Replace(kind[1]), kind[2]})
	}
	return all
}

// unescape undoes mountinfo's escapes.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// HasCgroups reports whether the mount is the hierarchy of a controller of cgroups v1, or, for an empty name, that of
// cgroups v2.
func (m Mount) HasCgroups(controller string) bool {
	if controller == "" {
		return m.Type == "cgroup2"
	}
	return m.Type == "cgroup" && slices.Contains(strings.Split(m.Options, ","), controller)
}

// FindCgroup returns where the hierarchy is mounted that HasCgroups of a controller, and the path below it of the
// cgroup that Cgroups names so. Both are empty when no such mount holds the cgroup.
func FindCgroup(mounts []Mount, controller, cgroup string) (mounted, below string) {
	for _, m := range mounts {
		below, ok := strings.CutPrefix(cgroup, strings.TrimSuffix(m.Root, "/"))
		if ok && m.HasCgroups(controller) && (below == "" || below[0] == '/') {
			return m.Dir, strings.Trim(below, "/")
		}
	}
	return "", ""
}

// Cgroups returns the paths of the cgroups that a process is in, by controller for version 1, and under the empty name
// for version 2. Lines of /proc/PID/cgroup are "4:cpu,cpuacct:/path", and "0::/path" for version 2.
func Cgroups(pid int) map[string]string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup") // a process that has ended is in none
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

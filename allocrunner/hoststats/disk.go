package hoststats

import (
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// disk returns the use of the file system that a directory is on. What only root may use of it counts as used for others, as in df.
func disk(dir string) (*api.HostDiskStats, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, fmt.Errorf("file system of the data directory: %w", err)
	}
	size := uint64(fs.Bsize)
	used := fs.Blocks - fs.Bfree
	d := &api.HostDiskStats{Size: fs.Blocks * size, Used: used * size, Available: fs.Bavail * size}
	if whole := used + fs.Bavail; whole > 0 {
		d.UsedPercent = 100 * float64(used) / float64(whole)
	}
	if fs.Files > 0 {
		d.InodesUsedPercent = 100 * float64(fs.Files-fs.Ffree) / float64(fs.Files)
	}
	text, _ := os.ReadFile("/proc/self/mountinfo") // the names stay empty
	d.Device, d.Mountpoint = mountOf(dir, string(text))
	return d, nil
}

// Device returns the device of the file system that a directory is on, as DiskStats name it; empty when it can't be found.
func Device(dir string) string {
	text, _ := os.ReadFile("/proc/self/mountinfo") // nothing is found in nothing
	device, _ := mountOf(dir, string(text))
	return device
}

// mountOf finds the mount that a directory is on in the text of mountinfo(5): the last one of those with its device.
func mountOf(dir, mounts string) (device, mountpoint string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return "", ""
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 2 || fields[2] != number {
			continue
		}
		point := unescape.Replace(fields[4])
		if within(dir, point) && len(point) >= len(mountpoint) {
			device, mountpoint = unescape.Replace(kind[1]), point
		}
	}
	return device, mountpoint
}

// unescape undoes mountinfo's escapes.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// within reports whether a path is below a directory, or that itself.
func within(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}

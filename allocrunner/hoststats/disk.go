package hoststats

import (
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// Disk returns the use of the file system that a directory is on. Space that only root may use counts as used, as in df.
func Disk(dir string) (*api.HostDiskStats, error) {
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
	text, _ := os.ReadFile("/proc/self/mountinfo") // without it the names stay empty
	d.Device, d.Mountpoint = mountOf(dir, string(text))
	return d, nil
}

// mountOf finds the mount that a directory is on in the text of mountinfo(5): the last of the innermost mounts of the directory's device.
func mountOf(dir, mounts string) (device, mountpoint string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return "", ""
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	// within reports whether the directory is the mount point or below it.
	within := func(point string) bool { return point == "/" || dir == point || strings.HasPrefix(dir, point+"/") }
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 2 || fields[2] != number {
			continue
		}
		point := unescape.Replace(fields[4])
		if within(point) && len(point) >= len(mountpoint) {
			device, mountpoint = unescape.Replace(kind[1]), point
		}
	}
	return device, mountpoint
}

// unescape undoes mountinfo's escapes.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

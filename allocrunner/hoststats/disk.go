package hoststats

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// Disk returns the use of the file system that a directory is on. Space that only root may use counts as used, as in
// df.
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
	d.Device, d.Mountpoint = mountOf(dir)
	return d, nil
}

// mountOf finds the mount that a directory is on: the last of the innermost mounts of the directory's device.
func mountOf(dir string) (device, mountpoint string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return "", ""
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, m := range proc.Mounts() {
		within := m.Dir == "/" || dir == m.Dir || strings.HasPrefix(dir, m.Dir+"/")
		if m.Device == number && within && len(m.Dir) >= len(mountpoint) {
			device, mountpoint = m.Source, m.Dir
		}
	}
	return device, mountpoint
}

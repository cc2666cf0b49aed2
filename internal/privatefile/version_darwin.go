package privatefile

import (
	"io/fs"
	"syscall"
)

func versionOf(info fs.FileInfo) Version {
	st := info.Sys().(*syscall.Stat_t)
	return Version{device: uint64(st.Dev), inode: st.Ino, size: st.Size, changed: st.Ctimespec}
}

package privatefile

import (
	"io/fs"
	"syscall"
)

func versionOf(info fs.FileInfo) Version {
	st := info.Sys().(*syscall.Stat_t)
	return Version{device: st.Dev, inode: st.Ino, size: st.Size, changed: st.Ctim}
}

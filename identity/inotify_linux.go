package identity

import (
	"os"

	"golang.org/x/sys/unix"
)

// inotify returns a file that becomes readable when a name in the directory changes, or nil if the kernel provides
// none.
func inotify(dir string) *os.File {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	events := os.NewFile(uintptr(fd), "inotify")
	const mask = unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CLOSE_WRITE | unix.IN_DELETE
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		events.Close()
		return nil
	}
	return events
}

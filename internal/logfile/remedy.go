package logfile

import (
	"errors"
	"syscall"
)

// remedies say what an operator can do about an error of the file system.
var remedies = []struct {
	cause  error
	remedy string
}{
	{syscall.ENOSPC, "make room on its file system"},
	{syscall.EDQUOT, "make room, or raise the quota"},
	{syscall.EFBIG, "raise the limit on the size of files (ulimit -f)"},
	{syscall.EROFS, "mount its file system for writing"},
	{syscall.EIO, "its disk fails: the kernel's log says more"},
	{syscall.EACCES, "it belongs to another user: run taskapi as that one"},
	{syscall.EPERM, "it belongs to another user, or is immutable"},
	{syscall.EMFILE, "raise the limit on open files (ulimit -n)"},
}

// Remedy returns what an operator can do about an error of the file system, with a semicolon before it; empty when
// nothing is known.
func Remedy(err error) string {
	for _, r := range remedies {
		if errors.Is(err, r.cause) {
			return "; " + r.remedy
		}
	}
	return ""
}

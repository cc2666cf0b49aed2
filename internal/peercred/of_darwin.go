package peercred

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

func of(fd int) (Cred, error) {
	cred, credErr := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	pid, pidErr := unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	if err := errors.Join(credErr, pidErr); err != nil {
		return Cred{}, fmt.Errorf("getsockopt LOCAL_PEERCRED and LOCAL_PEERPID: %w", err)
	}
	return Cred{PID: int32(pid), UID: cred.Uid, GID: cred.Groups[0]}, nil
}

package peercred

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func of(fd int) (Cred, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Cred{}, fmt.Errorf("getsockopt SO_PEERCRED: %w", err)
	}
	return Cred{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
}

package keeper

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// ReapOrphans collects what has ended and was handed to this program, until ctx ends, when it is PID 1, as in a
// container: a killed keeper, say, or what somebody has left who looked around in there. It may collect a keeper that
// this program has started: nobody needs a keeper's exit code.
func ReapOrphans(ctx context.Context) {
	if os.Getpid() != 1 {
		return
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)
	for {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && err != unix.EINTR {
				break
			}
		}
		select {
		case <-died:
		case <-ctx.Done():
			return
		}
	}
}

package keeper

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// If this program is PID 1, as in a container, ReapOrphans reaps the ended processes that it has inherited, until ctx
// ends: a killed keeper, for example, or processes from somebody's shell in the container. It may reap a keeper that
// this program has started, since nobody needs a keeper's exit code.
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

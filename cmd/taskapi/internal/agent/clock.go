package agent

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// watchClock calls set each time that somebody sets the machine's clock, until ctx ends.
func watchClock(ctx context.Context, set func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("timerfd_create", err)
	}
	timer := os.NewFile(uintptr(fd), "clock")
	defer timer.Close()
	never := unix.ItimerSpec{Value: unix.Timespec{Sec: 1 << 40}} // a set clock cancels the timer: see timerfd_create(2)
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	defer context.AfterFunc(ctx, func() { timer.Close() })()
	for {
		_, err := timer.Read(make([]byte, 8))
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ECANCELED):
			set()
		case err != nil:
			return err
		}
	}
}

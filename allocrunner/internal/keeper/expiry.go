package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"taskapi/internal/boottime"
)

// ErrExpired means that the time until which tasks may run has passed. Nothing was started.
var ErrExpired = errors.New("the tasks may not run any longer")

// whyExpired is what the results of tasks say that a keeper has killed at their end.
const whyExpired = "another machine may run the allocation, because the claim on it was not renewed in time"

// expiryGrace is how long a keeper has for the killing of its tasks, until the kernel kills the keeper, and with it the
// root processes of the tasks. A keeper that is stopped or hangs can't prevent that.
const expiryGrace = time.Second

// expiry is the time until which a keeper's tasks may run, on CLOCK_BOOTTIME. Two timers of the kernel have it: one
// wakes the keeper, and one kills the keeper if it has not killed the tasks by then.
type expiry struct {
	mu    sync.Mutex    // guards the fields below
	end   time.Duration // zero for no end
	wakes *os.File      // a timerfd; nil before the first end
	kills uintptr       // the ID of a POSIX timer
}

// sigevent is the kernel's struct of that name (sigevent(3type)), for a signal to this process.
type sigevent struct {
	value  uintptr
	signo  int32
	notify int32
	_      [48]byte
}

// openLocked makes the timers.
func (e *expiry) openLocked() error {
	event := sigevent{signo: int32(unix.SIGKILL)} // notify is SIGEV_SIGNAL, which is 0
	var id int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&event)),
		uintptr(unsafe.Pointer(&id))); errno != 0 {
		return fmt.Errorf("timer of the tasks' end: %w", errno)
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("timer of the tasks' end: %w", err)
	}
	e.kills, e.wakes = uintptr(id), os.NewFile(uintptr(fd), "timer of the tasks' end")
	return nil
}

// armLocked sets the timer that kills this process; zero stops the timer.
func (e *expiry) armLocked(at time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	_, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, e.kills, unix.TFD_TIMER_ABSTIME,
		uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("timer of the tasks' end: %w", errno)
	}
	return nil
}

// expire sets the time until which tasks may run. The killing timer is set first: a keeper that dies in between has
// kept the earlier end.
func (s *server) expire(end time.Duration) error {
	e := &s.expiry
	e.mu.Lock()
	defer e.mu.Unlock()
	if end <= 0 {
		return fmt.Errorf("%v since the machine's start is no end of tasks", end)
	}
	if e.wakes == nil {
		if err := e.openLocked(); err != nil {
			return err
		}
		go s.awaitExpiry() // until the keeper exits
	}
	e.end = end
	if err := e.armLocked(end + expiryGrace); err != nil {
		return err
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(end))}
	if err := unix.TimerfdSettime(int(e.wakes.Fd()), unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("timer of the tasks' end: %w", err)
	}
	return nil
}

// expired reports whether the tasks may not run now.
func (e *expiry) expired() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.end != 0 && boottime.Now() >= e.end
}

// awaitExpiry kills the tasks whenever their time has passed.
func (s *server) awaitExpiry() {
	for number := make([]byte, 8); ; {
		if _, err := s.expiry.wakes.Read(number); err != nil {
			s.logger.Error("the timer of the tasks' end can't be read: the kernel ends this process in time", "error", err)
			return
		}
		if s.expiry.expired() {
			s.endTasks()
		}
	}
}

// endTasks kills all tasks. If they are dead, this process may live on, for another end.
func (s *server) endTasks() {
	s.logger.Warn("the tasks may not run any longer, for taskapi has not renewed their time: killing them")
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	if err := s.local.KillAll(ctx, whyExpired); err != nil {
		s.logger.Error("tasks can't be killed", "error", err)
		return
	}
	s.expiry.mu.Lock()
	defer s.expiry.mu.Unlock()
	if !s.tasksRun() && boottime.Now() >= s.expiry.end {
		if err := s.expiry.armLocked(0); err != nil {
			s.logger.Error("the keeper ends", "error", err)
		}
	}
	s.changed.Send()
}

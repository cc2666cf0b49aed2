package keeper_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/must"
)

// supervised returns the configuration of the allocation in dir.
func supervised(dir string) keeper.Config {
	return keeper.Config{Dir: dir, Marker: mark(dir), Logger: slog.New(slog.DiscardHandler)}
}

func supervise(t *testing.T, dir string) *keeper.Supervisor { return superviseAs(t, supervised(dir)) }

func superviseAs(t *testing.T, cfg keeper.Config) *keeper.Supervisor {
	t.Helper()
	s := must.Get(keeper.Supervise(t.Context(), cfg, false))(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// script returns a task without logs; $FIFO names a pipe in dir.
func script(dir, task, text string) drivers.Spec {
	spec := shell(dir, task, text)
	spec.Logs = drivers.LogSpec{Disabled: true}
	return spec
}

// newFreezer returns a cgroup v2 for processes that are to be frozen.
func newFreezer(t *testing.T) string {
	t.Helper()
	mounts := must.Read(t, "/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if before, after, _ := strings.Cut(line, " - "); strings.HasPrefix(after, "cgroup2 ") {
			dir, err := os.MkdirTemp(strings.Fields(before)[4], "taskapi-test-freezer")
			if err != nil {
				t.Skip("no cgroup can be made here:", err)
			}
			t.Cleanup(func() {
				if err := os.Remove(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		}
	}
	t.Skip("no cgroup v2 is mounted here")
	return ""
}

// hangUp breaks this process's connections to another.
func hangUp(t *testing.T, pid int) {
	t.Helper()
	for _, fd := range connections(t, pid) {
		must.OK(t, unix.Shutdown(fd, unix.SHUT_RDWR))
	}
}

// freeze stops a process, and returns when each of its threads has stopped.
func freeze(t *testing.T, pid int) {
	t.Helper()
	must.OK(t, unix.Kill(pid, unix.SIGSTOP))
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, thread := range threads {
		for text, err := os.ReadFile(thread); err == nil &&
			!strings.Contains(string(text), ") T "); text, err = os.ReadFile(thread) {
			unix.Poll(nil, 1)
		}
	}
}

// unread returns how many bytes another process has not read of what this one has sent it.
func unread(t *testing.T, pid int) (sum int) {
	t.Helper()
	for _, fd := range connections(t, pid) {
		n := must.Get(unix.IoctlGetInt(fd, unix.SIOCOUTQ))(t)
		sum += n
	}
	return sum
}

// connections are this process's to another.
func connections(t *testing.T, pid int) (fds []int) {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	for _, e := range entries {
		fd := must.Get(strconv.Atoi(e.Name()))(t)
		if cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && int(cred.Pid) == pid {
			fds = append(fds, fd)
		}
	}
	return fds
}

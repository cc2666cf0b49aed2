// Package proctest helps tests with processes: what they say through a pipe, and whether they are still there. Nothing but tests may
// import it.
package proctest

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/processes"
)

// NeedRoot skips a test that becomes, or gives files to, another user.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("only root can become another user, or give it files")
	}
}

// Fifo makes a pipe named "fifo" in dir and opens it at once, so that a process's opening of it never waits.
func Fifo(tb testing.TB, dir string) *bufio.Reader {
	tb.Helper()
	path := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(path, 0o666); err != nil {
		tb.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	return bufio.NewReader(f)
}

// ReadLine returns the next line, without its end.
func ReadLine(tb testing.TB, r *bufio.Reader) string {
	tb.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// ReadPID returns the process number on the next line.
func ReadPID(tb testing.TB, r *bufio.Reader) int {
	tb.Helper()
	pid, err := strconv.Atoi(ReadLine(tb, r))
	if err != nil {
		tb.Fatal(err)
	}
	return pid
}

// Alive reports whether the process is there and no zombie.
func Alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// Pause lets others run between two looks at something that can't be waited for.
func Pause() { _, _ = unix.Poll(nil, 2) }

// Latest returns the task's latest process.
func Latest(tb testing.TB, s processes.Supervisor, task string) processes.ProcessID {
	tb.Helper()
	list, err := s.List(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	for _, status := range list {
		if status.Task == task {
			return status.ID()
		}
	}
	return processes.ProcessID{Task: task}
}

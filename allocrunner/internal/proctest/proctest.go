// Package proctest helps tests with processes: what they say through a pipe, and whether they are still there. Nothing
// but tests may import it.
package proctest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/internal/must"
	"taskapi/internal/proc"
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
	must.OK(tb, unix.Mkfifo(path, 0o666))
	f := must.Get(os.OpenFile(path, os.O_RDWR, 0))(tb)
	tb.Cleanup(func() { f.Close() })
	return bufio.NewReader(f)
}

// ReadLine returns the next line, without its end.
func ReadLine(tb testing.TB, r *bufio.Reader) string {
	tb.Helper()
	line := must.Get(r.ReadString('\n'))(tb)
	return strings.TrimSpace(line)
}

// ReadPID returns the process number on the next line.
func ReadPID(tb testing.TB, r *bufio.Reader) int {
	tb.Helper()
	pid := must.Get(strconv.Atoi(ReadLine(tb, r)))(tb)
	return pid
}

// Child is a process that a test has started.
type Child struct {
	*exec.Cmd

	Stdin  io.WriteCloser
	Stdout *bufio.Reader
	Kill   func() // returns when the process is gone; it may have ended, and have been killed
}

// Start starts a process, which is killed at the end of the test.
func Start(tb testing.TB, cmd *exec.Cmd) Child {
	tb.Helper()
	stdin := must.Get(cmd.StdinPipe())(tb)
	stdout := must.Get(cmd.StdoutPipe())(tb)
	must.OK(tb, cmd.Start())
	kill := sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // likewise
	})
	tb.Cleanup(kill)
	return Child{cmd, stdin, bufio.NewReader(stdout), kill}
}

// Alive reports whether the process is there and no zombie.
func Alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// Pause lets others run between two looks at something that can't be waited for.
func Pause() { _, _ = unix.Poll(nil, 2) }

// Latest returns the task's latest process.
func Latest(tb testing.TB, s interface {
	List(context.Context) ([]drivers.ProcessStatus, error)
}, task string) drivers.ProcessID {
	tb.Helper()
	list := must.Get(s.List(tb.Context()))(tb)
	for _, status := range list {
		if status.Task == task {
			return status.ID()
		}
	}
	return drivers.ProcessID{Task: task}
}

// NeedProc skips a test that looks at a user's processes where /proc hides them: with hidepid it hides from a user,
// root excepted, its own processes that are not dumpable.
func NeedProc(t testing.TB, uid int) {
	t.Helper()
	for _, m := range proc.Mounts() {
		hides := strings.Contains(m.Options, "hidepid=") && !strings.Contains(m.Options, "hidepid=off")
		if uid != 0 && m.Dir == "/proc" && hides {
			t.Skip("/proc is mounted with hidepid, so a user can't see all processes of its own: " + m.Options)
		}
	}
}

package logs_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/logs"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// newPipe returns a pipe as a task gets it: only the reading end does not block.
func newPipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	var fds [2]int
	must.OK(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	must.OK(t, unix.SetNonblock(fds[0], true))
	read, write = os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write")
	t.Cleanup(func() { write.Close() })
	return read, write
}

func TestDrainWritesAllUntilTheEnd(t *testing.T) {
	dir := t.TempDir()
	read, write := newPipe(t)
	d := logs.StartDrain(read, open(t, config(dir, 100, 1<<20)))
	text := strings.Repeat("some line of text\n", 200_000)
	must.Get(io.WriteString(write, text))(t)
	write.Close()
	<-d.Done()
	if got := joined(contents(t, dir)); got != text {
		t.Errorf("%d bytes in, %d out", len(text), len(got))
	}
}

func TestCutKeepsWhatIsInThePipe(t *testing.T) {
	dir := t.TempDir()
	read, write := newPipe(t)
	must.Get(io.WriteString(write, "before\n"))(t)
	d := logs.StartDrain(read, open(t, config(dir, 2, 1<<20)))
	d.Cut()
	<-d.Done()
	same.As(t, "before\n", joined(contents(t, dir)))
	same.Fails(t, same.Err(io.WriteString(write, "after\n")), "the pipe is still read after Cut")
}

func TestCutEndsADrainThatIsFlooded(t *testing.T) {
	read, write := newPipe(t)
	d := logs.StartDrain(read, open(t, config(t.TempDir(), 2, 1<<20)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := io.WriteString(write, strings.Repeat("x", 4096)); err != nil {
				return
			}
		}
	}()
	d.Cut()
	<-d.Done()
	<-done
}

// TestALossIsNotedWhileTheTaskIsSilent: the note comes without another byte of output.
func TestALossIsNotedWhileTheTaskIsSilent(t *testing.T) {
	dir, ballast := fullDisk(t)
	read, write := newPipe(t)
	r := open(t, config(dir, 3, 1<<20))
	d := logs.StartDrain(read, r)
	must.Get(io.WriteString(write, strings.Repeat("y", 200<<10)))(t)
	must.OK(t, os.Remove(ballast))
	for !note.MatchString(joined(contents(t, dir))) {
		if _, err := unix.Poll(nil, 10); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	}
	write.Close()
	<-d.Done()
}

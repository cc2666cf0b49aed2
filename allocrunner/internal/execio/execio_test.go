package execio_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/execio"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// open returns files and the program's ends.
func open(t *testing.T, tty bool) (*execio.Files, []*os.File) {
	t.Helper()
	files, child, err := execio.Open(tty)
	must.OK(t, err)
	t.Cleanup(func() {
		files.Close()
		for _, f := range child {
			f.Close()
		}
	})
	return files, child
}

// TestEndThatSomebodyHolds: what was written before the end is read, and then there is nothing more, though the
// program's end is still open.
func TestEndThatSomebodyHolds(t *testing.T) {
	for name, tty := range map[string]bool{"pipes": false, "terminal": true} {
		t.Run(name, func(t *testing.T) {
			files, child := open(t, tty)
			first := make([]byte, 3)
			must.Get(child[1].WriteString("one"))(t)
			if _, err := io.ReadFull(files.Stdout, first); err != nil || string(first) != "one" {
				t.Fatalf("%q, %v", first, err)
			}
			waiting := make(chan string)
			go func() {
				text, err := io.ReadAll(files.Stdout)
				if err != nil {
					t.Error(err)
				}
				waiting <- string(text)
			}()
			long := strings.Repeat("x", 2000)
			must.Get(child[1].WriteString(long))(t)
			files.End()
			if got := <-waiting; got != long {
				t.Errorf("%d bytes, want %d", len(got), len(long))
			}
			if n, err := files.Stderr.Read(first); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("errors: %d, %v", n, err)
			}
		})
	}
}

// TestTheProgramsEndsBlock: most programs can't deal with files that do not.
func TestTheProgramsEndsBlock(t *testing.T) {
	for _, tty := range []bool{false, true} {
		_, child := open(t, tty)
		if len(child) != 3 {
			t.Fatalf("%d files", len(child))
		}
		for i, f := range child {
			raw := must.Get(f.SyscallConn())(t)
			_ = raw.Control(func(fd uintptr) {
				flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
				if err != nil || flags&unix.O_NONBLOCK != 0 {
					t.Errorf("terminal %v, file %d: flags %#x, %v", tty, i, flags, err)
				}
			})
		}
	}
}

// TestClose fails a write that waits for room, and ends a read that waits for something.
func TestClose(t *testing.T) {
	for _, tty := range []bool{false, true} {
		files, _ := open(t, tty)
		wrote := make(chan error)
		go func() {
			var err error
			for err == nil {
				_, err = files.Stdin.Write(make([]byte, 4096))
			}
			wrote <- err
		}()
		read := make(chan error)
		go func() {
			_, err := io.Copy(io.Discard, files.Stderr)
			read <- err
		}()
		must.OK(t, files.Close())
		same.Error(t, os.ErrClosed, <-wrote, "terminal ", tty, ", write")
		same.Error(t, nil, <-read, "terminal ", tty, ", read")
		same.Error(t, nil, errors.Join(files.Close(), files.Stdin.Close()), "again")
		if err := files.Resize(1, 1); tty != (err != nil) {
			t.Errorf("terminal %v, resize: %v", tty, err)
		}
	}
}

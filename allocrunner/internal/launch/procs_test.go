package launch_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/launch"
	"taskapi/internal/must"
)

// TestEnteringCgroups: a cgroup of version 1 that a real-time process may not enter is passed by. Any other error ends
// the process with its errno.
func TestEnteringCgroups(t *testing.T) {
	read, write, err := os.Pipe()
	must.OK(t, err)
	defer read.Close()
	defer write.Close()
	invalid, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC) // write(2) to it is EINVAL
	must.OK(t, err)
	refusing := os.NewFile(uintptr(invalid), "epoll")
	defer refusing.Close()
	for name, tc := range map[string]struct {
		procs []*os.File
		want  error
	}{
		"both":           {[]*os.File{write, write}, nil},
		"not a weight":   {[]*os.File{write, refusing}, nil},
		"not open to it": {[]*os.File{read, write}, unix.EBADF},
	} {
		null := must.Get(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
		l, err := launch.New(launch.Program{Path: "/bin/true", Args: []string{"true"}, Dir: "/",
			Files: [3]*os.File{null, null, null}})
		must.OK(t, err)
		p, err := l.Fork(nil, tc.procs...)
		must.OK(t, err)
		err = l.Await(t.Context())
		if _, err := p.Wait(); err != nil {
			t.Error(err)
		}
		l.Close()
		null.Close()
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	buf := make([]byte, 8)
	if n, err := read.Read(buf); err != nil || string(buf[:n]) != "000" {
		t.Errorf("the processes wrote %q, %v", buf[:n], err)
	}
}

package processes_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestStartErrorsSayWhatToDo(t *testing.T) {
	e := newLocal(t, processes.Config{})
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(e.dir, name)
		must.OK(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	busy := file("busy", "", 0o755)
	copyProgram(t, busy)
	writer := must.Get(os.OpenFile(busy, os.O_WRONLY, 0))(t)
	defer writer.Close()

	for name, kind := range map[string]uint32{"pipe": unix.S_IFIFO, "socket": unix.S_IFSOCK} {
		must.OK(t, unix.Mknod(filepath.Join(e.dir, name), kind|0o755, 0))
	}

	for _, c := range []struct {
		name   string
		change func(*drivers.Spec)
		errno  error
		want   string
	}{
		{"missing", func(s *drivers.Spec) { s.Path = "/no/such" }, unix.ENOENT, "install it, or correct the command"},
		{"not executable", func(s *drivers.Spec) { s.Path = file("plain", "#!/bin/sh\n", 0o644) }, unix.EACCES, "chmod +x"},
		{"a directory", func(s *drivers.Spec) { s.Path = e.dir }, unix.EACCES, "is a directory"},
		{"a FIFO", func(s *drivers.Spec) { s.Path = filepath.Join(e.dir, "pipe") }, unix.EACCES,
			"is a FIFO: correct the command"},
		{"a socket", func(s *drivers.Spec) { s.Path = filepath.Join(e.dir, "socket") }, unix.EACCES,
			"is a socket: correct the command"},
		{"a device", func(s *drivers.Spec) { s.Path = "/dev/null" }, unix.EACCES, "is a device: correct the command"},
		{"no program", func(s *drivers.Spec) { s.Path = file("text", "hello\n", 0o755) }, unix.ENOEXEC, "#! line"},
		{"no interpreter", func(s *drivers.Spec) { s.Path = file("script", "#!/no/interp -x\n", 0o755) }, unix.ENOENT,
			`needs "/no/interp"`},
		{"busy", func(s *drivers.Spec) { s.Path = busy }, unix.ETXTBSY, "open for writing"},
		{"no directory", func(s *drivers.Spec) {
			s.Dir = "/no/dir"
		}, unix.ENOENT, `working directory "/no/dir" does not exist`},
		{"a file as directory", func(s *drivers.Spec) { s.Dir = "/etc/passwd" }, unix.ENOTDIR, "is no directory"},
		{"NUL", func(s *drivers.Spec) { s.Args = []string{"a\x00b"} }, unix.EINVAL, "NUL"},
		{"bad variable", func(s *drivers.Spec) { s.Env = []string{"novalue"} }, unix.EINVAL, "equals sign"},
		{"bad name", func(s *drivers.Spec) { s.Task = "../x" }, unix.EINVAL, "slash"},
		{"too long", func(s *drivers.Spec) { s.Args = []string{strings.Repeat("x", 200<<10)} }, unix.E2BIG, "too long"},
		{"no log directory", func(s *drivers.Spec) { s.Logs.Dir = "/no/logs" }, unix.ENOENT, "check the log directory"},
		{"two files", func(s *drivers.Spec) { s.Files = []*os.File{os.Stdin, os.Stdin} }, unix.EINVAL, "2 files were given"},
		{"no terminal", func(s *drivers.Spec) { s.TTY = true }, unix.EINVAL, "is no terminal"},
		{"no log files", func(s *drivers.Spec) { s.Logs.MaxFiles = 0 }, nil, "max_files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := e.spec("t", "/bin/true")
			c.change(&spec)
			_, err := e.Start(t.Context(), spec)
			start, ok := errors.AsType[*drivers.StartError](err)
			if !ok || !strings.Contains(start.Reason, c.want) || c.errno != nil && !errors.Is(err, c.errno) {
				t.Errorf("got %v, want a StartError (%v) with %q", err, c.errno, c.want)
			}
		})
	}
	e.start(e.spec("t", "/bin/true")) // the failures have not left the task taken
	e.wait("t")
}

func TestAnotherUserTakesRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may become anybody")
	}
	e := newLocal(t, processes.Config{})
	spec := e.spec("t", "/bin/true")
	spec.User = interfaces.User{Name: "root", UID: 0, GID: 0}
	same.Says(t, nil, "run it as root", same.Err(e.Start(t.Context(), spec)))
}

package driver_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
)

func TestStartErrorsSayWhatToDo(t *testing.T) {
	e := newLocal(t, driver.Config{})
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(e.dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	busy := file("busy", "", 0o755)
	copyProgram(t, busy)
	writer, err := os.OpenFile(busy, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()

	for name, kind := range map[string]uint32{"pipe": unix.S_IFIFO, "socket": unix.S_IFSOCK} {
		if err := unix.Mknod(filepath.Join(e.dir, name), kind|0o755, 0); err != nil {
			t.Fatal(err)
		}
	}

	for _, c := range []struct {
		name   string
		change func(*driver.Spec)
		errno  error
		want   string
	}{
		{"missing", func(s *driver.Spec) { s.Path = "/no/such" }, unix.ENOENT, "install it, or correct the command"},
		{"not executable", func(s *driver.Spec) { s.Path = file("plain", "#!/bin/sh\n", 0o644) }, unix.EACCES, "chmod +x"},
		{"a directory", func(s *driver.Spec) { s.Path = e.dir }, unix.EACCES, "is a directory"},
		{"a FIFO", func(s *driver.Spec) { s.Path = filepath.Join(e.dir, "pipe") }, unix.EACCES, "is a FIFO: correct the command"},
		{"a socket", func(s *driver.Spec) { s.Path = filepath.Join(e.dir, "socket") }, unix.EACCES, "is a socket: correct the command"},
		{"a device", func(s *driver.Spec) { s.Path = "/dev/null" }, unix.EACCES, "is a device: correct the command"},
		{"no program", func(s *driver.Spec) { s.Path = file("text", "hello\n", 0o755) }, unix.ENOEXEC, "#! line"},
		{"no interpreter", func(s *driver.Spec) { s.Path = file("script", "#!/no/interp -x\n", 0o755) }, unix.ENOENT, `needs "/no/interp"`},
		{"busy", func(s *driver.Spec) { s.Path = busy }, unix.ETXTBSY, "open for writing"},
		{"no directory", func(s *driver.Spec) { s.Dir = "/no/dir" }, unix.ENOENT, `working directory "/no/dir" does not exist`},
		{"a file as directory", func(s *driver.Spec) { s.Dir = "/etc/passwd" }, unix.ENOTDIR, "is no directory"},
		{"relative program", func(s *driver.Spec) { s.Path = "sh" }, unix.EINVAL, "no absolute path"},
		{"NUL", func(s *driver.Spec) { s.Args = []string{"a\x00b"} }, unix.EINVAL, "NUL"},
		{"bad variable", func(s *driver.Spec) { s.Env = []string{"novalue"} }, unix.EINVAL, "equals sign"},
		{"bad name", func(s *driver.Spec) { s.Task = "../x" }, unix.EINVAL, "slash"},
		{"bad score", func(s *driver.Spec) { s.OOMScoreAdj = -1 }, unix.EINVAL, "0 to 1000"},
		{"too long", func(s *driver.Spec) { s.Args = []string{strings.Repeat("x", 200<<10)} }, unix.E2BIG, "too long"},
		{"no log directory", func(s *driver.Spec) { s.Logs.Dir = "/no/logs" }, unix.ENOENT, "check the log directory"},
		{"no log files", func(s *driver.Spec) { s.Logs.MaxFiles = 0 }, nil, "max_files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := e.spec("t", "/bin/true")
			c.change(&spec)
			_, err := e.Start(t.Context(), spec)
			start, ok := errors.AsType[*driver.StartError](err)
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
	e := newLocal(t, driver.Config{})
	spec := e.spec("t", "/bin/true")
	spec.User = interfaces.User{Name: "root", UID: 0, GID: 0}
	if _, err := e.Start(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "run it as root") {
		t.Error(err)
	}
}

func TestLookUp(t *testing.T) {
	root := t.TempDir()
	task, bin := filepath.Join(root, "task"), filepath.Join(root, "bin")
	for _, dir := range []string{task + "/local/sub", task + "/dir", bin} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{
		task + "/local/both": 0o644, task + "/both": 0o644, task + "/top": 0o600, task + "/local/sub/deep": 0o755,
		bin + "/tool": 0o755, bin + "/plain": 0o644, root + "/outside": 0o644, bin + "/dir": 0o755,
	} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	links := map[string]string{
		task + "/local/inner": "sub/deep", task + "/local/escape": "../../outside", task + "/local/tool-link": bin + "/tool",
	}
	for path, to := range links {
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(task+"/local/pipe", 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=relative:" + bin}
	for command, want := range map[string]string{
		"both": task + "/local/both", "top": task + "/top", "sub/deep": task + "/local/sub/deep", "inner": task + "/local/inner",
		"tool": bin + "/tool", "tool-link": task + "/local/tool-link", "dir": bin + "/dir", bin + "/plain": bin + "/plain",
		"escape": "", "plain": "", "../outside": "", "pipe": "", "nothing": "", "/no/such": "", bin: "", "": "", "sub/none": "",
	} {
		got, err := driver.LookUp(task, "task", command, env)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", command, got, err, want)
		}
		if _, ok := errors.AsType[*driver.StartError](err); err != nil && !ok {
			t.Errorf("%q: %v is no StartError", command, err)
		}
	}
	for path, want := range map[string]os.FileMode{task + "/local/both": 0o755, task + "/both": 0o644, task + "/top": 0o711, root + "/outside": 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if got, err := driver.LookUp(task, "task", "sh", nil); err != nil || !filepath.IsAbs(got) {
		t.Errorf("without a PATH: %q, %v", got, err)
	}
}

// TestAbsoluteCommandIsThatFile: what somebody has put into the task directory under the same name is not it.
func TestAbsoluteCommandIsThatFile(t *testing.T) {
	root := t.TempDir()
	task, command := filepath.Join(root, "task"), filepath.Join(root, "bin", "tool")
	for _, path := range []string{filepath.Join(task, command), filepath.Join(task, "local", command), command} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := driver.LookUp(task, "task", command, nil); got != command || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, command)
	}
	if err := os.Remove(command); err != nil {
		t.Fatal(err)
	}
	if got, err := driver.LookUp(task, "task", command, nil); got != "" || err == nil {
		t.Errorf("got %q, %v when it is gone", got, err)
	}
}

// TestLookUpChangesNoFileOutside, however fast a task swaps what it has in its directory.
func TestLookUpChangesNoFileOutside(t *testing.T) {
	root := t.TempDir()
	task, outside := filepath.Join(root, "task"), filepath.Join(root, "outside")
	name, other := filepath.Join(task, "x"), filepath.Join(task, "other")
	if err := os.Mkdir(task, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			var err error
			if i%2 == 0 {
				err = os.WriteFile(other, nil, 0o644)
			} else {
				err = os.Symlink(outside, other)
			}
			if err := errors.Join(err, os.Rename(other, name)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 3000 {
		_, _ = driver.LookUp(task, "task", "x", nil)
	}
	close(stop)
	swaps.Wait()
	if info, err := os.Stat(outside); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

package launch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/launch"
	"taskapi/allocrunner/internal/proctest"
)

// The signal at the parent's death is the thread's that has executed the program, which is where a program's functions
// init run.
func init() { runtime.LockOSThread() }

// TestMain runs the tests, or is a program that they start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "report" {
		_ = json.NewEncoder(os.Stdout).Encode(newReport())
		unix.Exit(0) // os.Exit would let the race detector sleep for a second
	}
	if len(os.Args) > 1 && os.Args[1] == "between" { // starts a process whose parent is another than the tests
		cmd := command(os.NewFile(launch.FD, "launch"))
		fmt.Print(cmd.Run())
		unix.Exit(0)
	}
	m.Run()
}

// report is what a program finds itself to be.
type report struct {
	Args, Env   []string
	Dir         string
	User        []int // real and effective, then the group's
	Groups      []int
	Files       []int
	ParentDeath int // the signal
}

func newReport() report {
	r := report{Args: os.Args, Env: os.Environ(), User: []int{os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid()}}
	r.Dir, _ = os.Getwd()
	r.Groups, _ = os.Getgroups()
	r.Files = inherited()
	var death int32
	_ = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&death)), 0, 0, 0)
	r.ParentDeath = int(death)
	return r
}

// inherited returns the open files that programs get which are executed from here. What Go's runtime opens is not among
// them.
func inherited() (fds []int) {
	for fd := range 256 {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			fds = append(fds, fd)
		}
	}
	return fds
}

// command returns the process that becomes a program, as a driver starts it.
func command(child *os.File) *exec.Cmd {
	return &exec.Cmd{Path: launch.Exe, Args: []string{launch.Name, "t"}, Dir: "/", Env: launch.Env(),
		ExtraFiles: []*os.File{child}}
}

// process is one that has been started and knows nothing yet.
type process struct {
	*launch.Launch
	*exec.Cmd
	out, errs bytes.Buffer
}

func start(t *testing.T) *process {
	t.Helper()
	l, err := launch.New()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Launch: l, Cmd: command(l.Child)}
	p.Stdout, p.Stderr = &p.out, &p.errs
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()         // the test may have waited
		l.Close()
	})
	return p
}

// openDir returns a directory that every user may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

var stranger = &launch.User{UID: 3100000077, GID: 3100000078, Groups: []uint32{3100000079, 3100000080}}

// TestBecome: the program is the task's user in all respects, has what it was given, and nothing of ours.
func TestBecome(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := openDir(t)
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, user := range map[string]*launch.User{"as we are": nil, "another user": stranger,
		"another user without groups": {UID: 7, GID: 8}} {
		t.Run(name, func(t *testing.T) {
			want := report{
				Args: []string{"its name", "report", "", "a b"}, Env: []string{"A=1", "B=x\ny"}, Dir: dir, Files: inherited(),
				User: []int{os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid()}, ParentDeath: int(unix.SIGKILL),
			}
			want.Groups, _ = os.Getgroups()
			want.Files = slices.DeleteFunc(want.Files, func(fd int) bool { return fd == launch.FD })
			if user != nil {
				proctest.NeedRoot(t)
				want.User, want.Groups = []int{int(user.UID), int(user.UID), int(user.GID), int(user.GID)}, nil
				for _, group := range user.Groups {
					want.Groups = append(want.Groups, int(group))
				}
			}
			p := start(t)
			if err := p.Become(t.Context(), launch.Program{Path: program, Args: want.Args, Env: want.Env, Dir: dir,
				User: user}); err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err != nil {
				t.Fatalf("%v: %s", err, &p.errs)
			}
			var got report
			if err := json.Unmarshal(p.out.Bytes(), &got); err != nil {
				t.Fatalf("%v: %s", err, &p.out)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the program (-want +got):\n%s", diff)
			}
		})
	}
}

// TestErrors has the error number and a reason of each program that can't be executed, and the process is gone.
func TestErrors(t *testing.T) {
	dir := openDir(t)
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const truth = "/bin/true"
	secret := filepath.Join(dir, "secret")
	if err := os.Mkdir(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		program launch.Program
		errno   unix.Errno
		reason  string
	}{
		"no program": {launch.Program{Path: dir + "/none", Dir: dir}, unix.ENOENT, `does not exist: install it`},
		"no interpreter": {launch.Program{Path: write("script", "#!/no/interpreter\n", 0o755), Dir: dir}, unix.ENOENT,
			`needs "/no/interpreter"`},
		"not executable": {launch.Program{Path: write("plain", "x", 0o644), Dir: dir}, unix.EACCES, "chmod +x it"},
		"a directory":    {launch.Program{Path: dir, Dir: dir}, unix.EACCES, "is a directory"},
		"no format": {launch.Program{Path: write("text", "x", 0o755), Dir: dir}, unix.ENOEXEC,
			"neither a program for this machine"},
		"too much": {launch.Program{Path: truth, Args: []string{strings.Repeat("x", 1<<20)}, Dir: dir}, unix.E2BIG,
			"too long for the kernel"},
		"no directory":  {launch.Program{Path: truth, Dir: dir + "/none"}, unix.ENOENT, "working directory"},
		"a file for it": {launch.Program{Path: truth, Dir: truth}, unix.ENOTDIR, "is no directory"},
		"a closed one": {launch.Program{Path: truth, Dir: secret, User: stranger, Name: "them"}, unix.EACCES,
			`user "them" (uid 3100000077) may not`},
		"a closed program": {launch.Program{Path: write("ours", "#!/bin/sh\n", 0o700), Dir: dir, User: stranger}, unix.EACCES,
			"may not run"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.program.User != nil {
				proctest.NeedRoot(t)
			}
			p := start(t)
			err := p.Become(t.Context(), tc.program)
			failure, ok := errors.AsType[*launch.Error](err)
			if !ok || failure.Errno != tc.errno || !errors.Is(err, tc.errno) || !strings.Contains(err.Error(), tc.reason) {
				t.Errorf("%v, %#v; want errno %d and a reason with %q", err, err, tc.errno, tc.reason)
			}
			var exit *exec.ExitError
			if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 126 {
				t.Errorf("it ended with %v, want exit status 126", err)
			}
			if text := p.out.String() + p.errs.String(); text != "" {
				t.Errorf("it said %q", text)
			}
		})
	}
}

// TestNobodyElseBecomes: only a process whose parent is who said what to become executes it.
func TestNobodyElseBecomes(t *testing.T) {
	l, err := launch.New()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	between := exec.CommandContext(t.Context(), self, "between")
	between.ExtraFiles = []*os.File{l.Child}
	var out bytes.Buffer
	between.Stdout = &out
	if err := between.Start(); err != nil {
		t.Fatal(err)
	}
	marker := filepath.Join(t.TempDir(), "executed")
	err = l.Become(t.Context(), launch.Program{Path: "/bin/sh", Args: []string{"sh", "-c", `: >"$0"`, marker}, Dir: "/"})
	if err == nil || errors.As(err, new(*launch.Error)) {
		t.Errorf("become: %v; want that it has ended", err)
	}
	if err := between.Wait(); err != nil || out.String() != "signal: killed" {
		t.Errorf("%v, it ended with %q", err, &out)
	}
	if _, err := os.Stat(marker); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program was executed: %v", err)
	}
}

// TestClose ends a process that nobody has said anything to.
func TestClose(t *testing.T) {
	p := start(t)
	p.Close()
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 126 {
		t.Errorf("it ended with %v, want exit status 126", err)
	}
}

// TestAHang is one of the process alone. Meanwhile the task's user can't get at it, though it is that user's already:
// what it was given, as tokens in the environment, is its own. It can be given up, and killed.
func TestAHang(t *testing.T) {
	program := filepath.Join(openDir(t), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// who executes a file that another has a write lease on waits until that is given back
	hangs := make(chan os.Signal, 1)
	signal.Notify(hangs, unix.SIGIO)
	defer signal.Stop(hangs)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("no lease can be had here:", err)
	}
	p := start(t)
	user := stranger
	if os.Geteuid() != 0 {
		user = nil
	}
	ctx, giveUp := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() {
		result <- p.Become(ctx, launch.Program{Path: program, Args: []string{"x"}, Env: []string{"SECRET=1"}, Dir: "/",
			User: user})
	}()
	select {
	case <-hangs:
	case err := <-result:
		t.Fatal("it does not hang:", err)
	}
	if user != nil {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
		if err != nil || !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", user.UID)) {
			t.Errorf("its user: %v\n%s", err, status)
		}
		owners := map[uint32]bool{}
		for _, name := range []string{"environ", "mem", "fd", "maps"} {
			info, err := os.Stat(fmt.Sprintf("/proc/%d/%s", p.Process.Pid, name))
			if err != nil {
				t.Fatal(err)
			}
			owners[info.Sys().(*syscall.Stat_t).Uid] = true
		}
		if got := slices.Collect(maps.Keys(owners)); !slices.Equal(got, []uint32{0}) {
			t.Errorf("what the kernel shows of it belongs to %v, want root alone", got)
		}
	}
	reason := errors.New("given up")
	giveUp(reason)
	if err := <-result; !errors.Is(err, reason) {
		t.Errorf("become: %v, want %v", err, reason)
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v", err)
	}
}

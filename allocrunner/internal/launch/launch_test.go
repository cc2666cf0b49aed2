package launch_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/launch"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/proc"
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
	if len(os.Args) > 2 && os.Args[1] == "launch" {
		if err := launchProgram(os.Args[2:]); err != nil {
			fmt.Println(err)
		}
		unix.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "launch-twice" {
		if err := launchTwice(os.Args[2:]); err != nil {
			fmt.Println(err)
		}
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
	ParentDeath int    // the signal
	Effective   string // capabilities
	Ambient     string
}

func newReport() report {
	r := report{Args: os.Args, Env: os.Environ(), User: []int{os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid()}}
	r.Dir, _ = os.Getwd()
	r.Groups, _ = os.Getgroups()
	r.Files = inherited()
	var death int32
	_ = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&death)), 0, 0, 0)
	r.ParentDeath = int(death)
	r.Effective, r.Ambient = proc.Value(ownStatus, "CapEff"), proc.Value(ownStatus, "CapAmb")
	return r
}

// ownStatus has the capabilities of the process that reads it.
const ownStatus = "/proc/self/status"

// The capabilities of a process, as its status shows them.
const (
	none    = "0000000000000000"
	netBind = "0000000000000400" // CAP_NET_BIND_SERVICE
)

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

// process is one that has been forked.
type process struct {
	*launch.Launch
	*os.Process
	out, errs *os.File // pipes
}

// start forks a process that becomes the program, with pipes for its output.
func start(t *testing.T, program launch.Program) *process {
	t.Helper()
	p := new(process)
	null := must.Get(os.Open(os.DevNull))(t)
	defer null.Close()
	program.Files[0] = null
	for i, ours := range []**os.File{&p.out, &p.errs} {
		read, write, err := os.Pipe()
		must.OK(t, err)
		t.Cleanup(func() { read.Close() })
		defer write.Close()
		*ours, program.Files[i+1] = read, write
	}
	p.Launch = must.Get(launch.New(program))(t)
	t.Cleanup(p.Close)
	p.Process = must.Get(p.Fork(nil))(t)
	t.Cleanup(func() {
		_ = p.Kill()    // it may have ended
		_, _ = p.Wait() // the test may have waited
	})
	return p
}

// end returns how the process ended, and its output.
func (p *process) end(t *testing.T) (state *os.ProcessState, out, errs string) {
	t.Helper()
	var texts [2]string
	for i, pipe := range []*os.File{p.out, p.errs} {
		text, err := io.ReadAll(pipe)
		if err != nil {
			t.Error(err)
		}
		texts[i] = string(text)
	}
	state, err := p.Wait()
	if err != nil {
		t.Error(err)
	}
	return state, texts[0], texts[1]
}

// launchProgram starts a program with the standard files of this one, and with the score in its environment, and waits
// for its end.
func launchProgram(args []string) error {
	score, _ := strconv.Atoi(os.Getenv("SCORE"))
	l, err := launch.New(launch.Program{Path: args[0], Args: args, Dir: "/", OOMScoreAdj: score,
		NetBindService: os.Getenv("NET_BIND") != "", Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return err
	}
	defer l.Close()
	var cgroup *os.File
	if dir := os.Getenv("CGROUP"); dir != "" {
		if cgroup, err = os.Open(dir); err == nil {
			err = refuseClone3()
		}
		if err != nil {
			return err
		}
		defer cgroup.Close()
	}
	p, err := l.Fork(cgroup)
	if err != nil {
		return err
	}
	_, waited := p.Wait()
	return errors.Join(l.Await(context.Background()), waited)
}

// refuseClone3 has the kernel answer ENOSYS to clone3 from now on.
func refuseClone3() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE3, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}

// TestCgroupWithoutClone3: a filter of system calls, such as systemd's RestrictNamespaces, refuses clone3, and the
// program runs in its cgroup all the same.
func TestCgroupWithoutClone3(t *testing.T) {
	mounts := proc.Mounts()
	i := slices.IndexFunc(mounts, func(m proc.Mount) bool { return m.HasCgroups("") })
	if i < 0 {
		t.Skip("no cgroup v2 is mounted")
	}
	dir, err := os.MkdirTemp(filepath.Join(mounts[i].Dir, proc.Cgroups(os.Getpid())[""]), "launch")
	if err != nil {
		t.Skipf("no cgroup can be made: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	self := must.Get(os.Executable())(t)
	cmd := exec.Command(self, "launch", "/bin/cat", "/proc/self/cgroup")
	cmd.Env = append(os.Environ(), "CGROUP="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "/"+filepath.Base(dir)+"\n") {
		t.Errorf("the program is in\n%s%v; want %s", out, err, dir)
	}
}

// launchTwice starts a program twice. At the first time no more files can be opened here.
func launchTwice(args []string) error {
	var fill []*os.File
	for range 2 {
		l, err := launch.New(launch.Program{Path: args[0], Args: args, Dir: "/",
			Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}})
		if err != nil {
			return err
		}
		defer l.Close()
		for first := fill == nil; first && err == nil; {
			var f *os.File
			if f, err = os.Open(os.DevNull); err == nil {
				fill = append(fill, f)
			}
		}
		p, err := l.Fork(nil)
		for _, f := range fill {
			f.Close()
		}
		if err != nil {
			return err
		}
		if _, err := p.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// openDir returns a directory that every user may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	return dir
}

// copyOfThis makes a copy of this program in a directory, which every user may execute, and returns its path.
func copyOfThis(t *testing.T, dir string) string {
	t.Helper()
	self := must.Get(os.Executable())(t)
	binary := must.Read(t, self)
	program := filepath.Join(dir, "program")
	must.Program(t, program, binary)
	return program
}

var stranger = &launch.User{UID: 3100000077, GID: 3100000078, Groups: []uint32{3100000079, 3100000080}}

// TestBecome: the program is the task's user in all respects, has what it was given, and nothing of ours.
func TestBecome(t *testing.T) {
	dir := openDir(t)
	program := copyOfThis(t, dir)
	const mayBind = "another user who may bind privileged ports"
	for name, user := range map[string]*launch.User{"as we are": nil, "another user": stranger,
		"another user without groups": {UID: 7, GID: 8}, mayBind: stranger} {
		t.Run(name, func(t *testing.T) {
			want := report{
				Args: []string{"its name", "report", "", "a b"}, Env: []string{"A=1", "B=x\ny"}, Dir: dir, Files: []int{0, 1, 2},
				User: []int{os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid()}, ParentDeath: int(unix.SIGKILL),
				Effective: proc.Value(ownStatus, "CapEff"), Ambient: proc.Value(ownStatus, "CapAmb"),
			}
			want.Groups, _ = os.Getgroups()
			if user != nil {
				proctest.NeedRoot(t)
				want.User, want.Groups = []int{int(user.UID), int(user.UID), int(user.GID), int(user.GID)}, nil
				want.Effective, want.Ambient = none, none
				for _, group := range user.Groups {
					want.Groups = append(want.Groups, int(group))
				}
			}
			if name == mayBind {
				want.Effective, want.Ambient = netBind, netBind
			}
			p := start(t, launch.Program{Path: program, Args: want.Args, Env: want.Env, Dir: dir, User: user,
				NetBindService: name == mayBind})
			must.OK(t, p.Await(t.Context()))
			state, out, errs := p.end(t)
			var got report
			if err := json.Unmarshal([]byte(out), &got); err != nil || !state.Success() {
				t.Fatalf("%v, %v: %s%s", state, err, out, errs)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the program (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNetBindServiceEnds: a child has the one capability, too, and a set-user-ID program has none.
func TestNetBindServiceEnds(t *testing.T) {
	proctest.NeedRoot(t)
	dir := openDir(t)
	for name, want := range map[string]string{"child": netBind, "set-user-ID": none} {
		t.Run(name, func(t *testing.T) {
			program, owner := copyOfThis(t, dir), 7
			if name == "child" {
				owner = int(stranger.UID)
			}
			must.OK(t, errors.Join(os.Chown(program, owner, owner), os.Chmod(program, 0o755|os.ModeSetuid)))
			p := start(t, launch.Program{Path: "/bin/sh", Args: []string{"sh", "-c", `"$0" report; :`, program}, Dir: dir,
				User: stranger, NetBindService: true})
			must.OK(t, p.Await(t.Context()))
			_, out, errs := p.end(t)
			var got report
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatalf("%v: %s%s", err, out, errs)
			}
			if got.User[1] != owner {
				t.Skipf("the file system ignores the set-user-ID bit: the program runs as %d", got.User[1])
			}
			if got.Effective != want || got.Ambient != want {
				t.Errorf("it has %s, of them ambient %s; want %s", got.Effective, got.Ambient, want)
			}
		})
	}
}

// TestNetBindServiceOfOurOwn: a program that is no root's and has the capability gives it to those that are to have it
// and to no others. One that does not have it starts them without it.
func TestNetBindServiceOfOurOwn(t *testing.T) {
	proctest.NeedRoot(t)
	dir := openDir(t)
	without := filepath.Join(dir, "without")
	must.OK(t, os.Rename(copyOfThis(t, dir), without))
	with := copyOfThis(t, dir)
	// struct vfs_cap_data in its second version: permitted and effective
	capability := binary.LittleEndian.AppendUint32(nil, 0x02000001)
	capability = append(binary.LittleEndian.AppendUint32(capability, 1<<unix.CAP_NET_BIND_SERVICE), make([]byte, 12)...)
	if err := unix.Setxattr(with, "security.capability", capability, 0); err != nil {
		t.Skipf("the file system gives programs no capabilities: %v", err)
	}
	for _, test := range []struct{ program, given, want string }{
		{with, "NET_BIND=1", netBind}, {with, "NET_BIND=", none}, {without, "NET_BIND=1", none},
	} {
		cmd := exec.Command(test.program, "launch", "/bin/grep", "^CapEff", ownStatus)
		cmd.Env = append(os.Environ(), test.given)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger.UID, Gid: stranger.GID}}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "CapEff:\t"+test.want+"\n" {
			t.Errorf("%s with %q: %s, %v; want %s", test.program, test.given, out, err, test.want)
		}
	}
}

// TestLimitOfOpenFiles is what this program was started with, though Go has raised it since.
func TestLimitOfOpenFiles(t *testing.T) {
	self := must.Get(os.Executable())(t)
	for limits, want := range map[string]string{"ulimit -n 99; ulimit -S -n 77": "77 99", "ulimit -n 99": "99 99"} {
		cmd := exec.Command("/bin/sh", "-c", limits+`; exec "$0" launch /bin/sh -c 'echo $(ulimit -S -n) $(ulimit -H -n)'`,
			self)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: a program that it starts has %s, %v; want %s", limits, out, err, want)
		}
	}
}

// TestLimitOfOpenFilesAfterAnError: if the limit can't be found out at a start, it is at the next one.
func TestLimitOfOpenFilesAfterAnError(t *testing.T) {
	self := must.Get(os.Executable())(t)
	cmd := exec.Command("/bin/sh", "-c", `ulimit -n 99; ulimit -S -n 77; exec "$0" launch-twice /bin/sh -c 'ulimit -S -n'`,
		self)
	out, err := cmd.CombinedOutput()
	if lines := strings.Fields(string(out)); err != nil || len(lines) != 2 || lines[0] == "77" || lines[1] != "77" {
		t.Errorf("the programs have %q, %v; want another limit than 77, and then 77", out, err)
	}
}

// TestOOMScoreAdj is set, and a program runs nevertheless when that is refused: here for a number that is too high, and
// in a container for one that is lower than the container's own.
func TestOOMScoreAdj(t *testing.T) {
	const file = "/proc/self/oom_score_adj"
	self := must.Get(os.Executable())(t)
	ours := must.Read(t, file)
	for score, want := range map[string]string{"700": "700\n", "2000": string(ours)} {
		cmd := exec.Command(self, "launch", "/bin/cat", file)
		cmd.Env = append(os.Environ(), "SCORE="+score)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%s: the program has %s, %v; want %s", score, out, err, want)
		}
	}
}

// TestErrors has the error number and a reason of each program that can't be executed, and the process is gone.
func TestErrors(t *testing.T) {
	dir := openDir(t)
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(content), mode))
		return path
	}
	const truth = "/bin/true"
	secret := filepath.Join(dir, "secret")
	must.OK(t, os.Mkdir(secret, 0o700))
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
			p := start(t, tc.program)
			err := p.Await(t.Context())
			failure, ok := errors.AsType[*launch.Error](err)
			if !ok || failure.Errno != tc.errno || !errors.Is(err, tc.errno) || !strings.Contains(err.Error(), tc.reason) {
				t.Errorf("%v, %#v; want errno %d and a reason with %q", err, err, tc.errno, tc.reason)
			}
			if state, out, errs := p.end(t); state.ExitCode() != 126 || out+errs != "" {
				t.Errorf("it ended with %v, want exit status 126, and said %q", state, out+errs)
			}
		})
	}
}

// TestAHang is one of the process alone. Meanwhile the task's user can't get at it, though it is that user's already:
// what it was given, as tokens in the environment, is its own. It can be given up, and killed.
func TestAHang(t *testing.T) {
	proctest.NeedProc(t, os.Geteuid())
	program := filepath.Join(openDir(t), "program")
	must.Program(t, program, []byte("#!/bin/sh\n"))
	f := must.Get(os.Open(program))(t)
	defer f.Close()
	// who executes a file that another has a write lease on waits until that is given back
	hangs := make(chan os.Signal, 1)
	signal.Notify(hangs, unix.SIGIO)
	defer signal.Stop(hangs)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("no lease can be had here:", err)
	}
	user := stranger
	if os.Geteuid() != 0 {
		user = nil
	}
	p := start(t, launch.Program{Path: program, Args: []string{"x"}, Env: []string{"SECRET=1"}, Dir: "/", User: user})
	ctx, giveUp := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() { result <- p.Await(ctx) }()
	select {
	case <-hangs:
	case err := <-result:
		t.Fatal("it does not hang:", err)
	}
	if user != nil {
		if open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid)); err != nil || len(open) != 4 {
			t.Errorf("it has open %v, %v; want the standard files and the connection", open, err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
		if err != nil || !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", user.UID)) {
			t.Errorf("its user: %v\n%s", err, status)
		}
	}
	owners := map[uint32]bool{}
	for _, name := range []string{"environ", "mem", "fd", "maps"} {
		info := must.Get(os.Stat(fmt.Sprintf("/proc/%d/%s", p.Pid, name)))(t)
		owners[info.Sys().(*syscall.Stat_t).Uid] = true
	}
	if got := slices.Collect(maps.Keys(owners)); !slices.Equal(got, []uint32{0}) {
		t.Errorf("what the kernel shows of it belongs to %v, want root alone", got)
	}
	reason := errors.New("given up")
	giveUp(reason)
	if err := <-result; !errors.Is(err, reason) {
		t.Errorf("become: %v, want %v", err, reason)
	}
	must.OK(t, p.Kill())
	if state, _, _ := p.end(t); state.String() != "signal: killed" {
		t.Errorf("it ended with %v", state)
	}
}

// TestAHangWithoutRoot: of a process that does not change its user, too, the kernel shows and dumps nothing to this
// user, for it has the memory of the program that has forked it.
func TestAHangWithoutRoot(t *testing.T) {
	proctest.NeedRoot(t) // to become another user
	proctest.NeedProc(t, 65534)
	dir := openDir(t)
	cmd := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", copyOfThis(t, dir),
		"-test.run", "^TestAHang$", "-test.v")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	must.OK(t, os.Chmod(dir, 0o777))
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestAHang") {
		t.Errorf("%v: %s", err, out)
	}
}

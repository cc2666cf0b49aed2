package keeper_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// interactive returns a script that runs beside a task with files of the caller's.
func interactive(dir, text string, tty bool, files ...*os.File) drivers.ExecSpec {
	spec := drivers.ExecSpec{Spec: shell(dir, "t", text)}
	spec.Files, spec.TTY = files, tty
	return spec
}

// pty returns a new pseudo-terminal.
func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master = must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 7, Col: 91})
	}
	must.OK(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	must.OK(t, err)
	return master, slave
}

func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd := must.Get(unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0))(t)
	return os.NewFile(uintptr(fd), f.Name())
}

// pipes are three, and the ends that stay with the caller.
func pipes(t *testing.T) (files []*os.File, in, out, errs *os.File) {
	t.Helper()
	var ends [3]*os.File
	for i := range ends {
		r, w, err := os.Pipe()
		must.OK(t, err)
		if i == 0 {
			r, w = w, r
		}
		files, ends[i] = append(files, w), r
		t.Cleanup(func() { r.Close() })
	}
	return files, ends[0], ends[1], ends[2]
}

type ended struct {
	drivers.ExecResult
	err error
}

func inBackground(c interface {
	Exec(context.Context, drivers.ExecSpec) (drivers.ExecResult, error)
}, spec drivers.ExecSpec) <-chan ended {
	done := make(chan ended, 1)
	go func() {
		result, err := c.Exec(context.Background(), spec)
		done <- ended{result, err}
	}()
	return done
}

// TestATerminal is the program's controlling one, also as another user: it has its size, its line editing and its
// signals.
func TestATerminal(t *testing.T) {
	for name, user := range map[string]interfaces.User{"same user": {},
		"another user": {Name: "nobody", UID: nobody, GID: nobody}} {
		t.Run(name, func(t *testing.T) {
			if user.UID != 0 && os.Geteuid() != 0 {
				t.Skip("takes root to be somebody else")
			}
			dir := t.TempDir()
			s := supervise(t, dir)
			run(t, s, script(dir, "t", "exec sleep 1000"))
			master, slave := pty(t)
			// It turns the echo off: the kernel echoes a Ctrl-C after its signal, and perhaps after what the program says.
			spec := interactive(dir, `trap "echo interrupted; exit 7" INT; stty size; echo by name >/dev/tty; echo again `+
				`>$(tty); read -r line; stty -echo; echo "got $line"; `+
				`while :; do sleep 0.05; done`, true, slave, dup(t, slave), dup(t, slave))
			spec.User, spec.Dir = user, "/"
			done := inBackground(s, spec)
			lines := bufio.NewReader(master)
			expect := func(want string) {
				t.Helper()
				if line, err := lines.ReadString('\n'); strings.TrimSpace(line) != want {
					t.Fatalf("%q, %v; want %q", line, err, want)
				}
			}
			for _, want := range []string{"7 91", "by name", "again"} {
				expect(want)
			}
			for _, typed := range []string{"helxo\x7f\x7flo\n", "\x03"} { // backspace twice; Ctrl-C
				must.Get(master.WriteString(typed))(t)
				if typed == "\x03" {
					expect("interrupted")
					break
				}
				if _, err := lines.ReadString('\n'); err != nil { // its echo
					t.Fatal(err)
				}
				expect("got hello")
			}
			if got := <-done; got.err != nil || got.Exit.ExitCode != 7 || len(got.Output) > 0 {
				t.Errorf("%+v", got)
			}
			// nobody has the slave any more
			if rest, err := io.ReadAll(lines); len(rest) > 0 || !errors.Is(err, unix.EIO) {
				t.Errorf("%q, %v", rest, err)
			}
		})
	}
}

// TestPipes are the program's alone: their other ends see it close one, and their end with its own.
func TestPipes(t *testing.T) {
	dir := t.TempDir()
	s := supervise(t, dir)
	run(t, s, script(dir, "t", "exec sleep 1000"))
	files, in, out, errs := pipes(t)
	done := inBackground(s, interactive(dir, `cat; exec >&-; cat /proc/self/cgroup >&2; read x <$FIFO; exit 3`, false,
		files...))
	fifo, err := os.OpenFile(dir, os.O_RDONLY, 0)
	if err == nil {
		fifo.Close()
		err = unix.Mkfifo(dir+"/fifo", 0o600)
	}
	must.OK(t, err)
	must.Get(in.WriteString("hello"))(t)
	in.Close()
	if text, err := io.ReadAll(out); string(text) != "hello" || err != nil { // while the program still runs
		t.Errorf("%q, %v", text, err)
	}
	must.OK(t, os.WriteFile(dir+"/fifo", []byte("\n"), 0))
	if got := <-done; got.err != nil || got.Exit.ExitCode != 3 {
		t.Errorf("%+v", got)
	}
	text, err := io.ReadAll(errs)
	list, _ := s.List(t.Context())
	if err != nil || list[0].NoCgroup == "" && !strings.Contains(string(text), "/task.t/exec.") {
		t.Errorf("%q, %v; want a cgroup in the task's", text, err)
	}
}

// TestInteractiveProgramsAreBounded, and script checks run beside as many as there may be.
func TestInteractiveProgramsAreBounded(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	run(t, c, shell(dir, "t", "exec sleep 1000"))
	var running []<-chan ended
	var ins []*os.File
	for range drivers.MaxInteractive {
		files, in, out, _ := pipes(t)
		running, ins = append(running, inBackground(c, interactive(dir, "echo $$; read x; exit 5", false,
			files...))), append(ins, in)
		proctest.ReadPID(t, bufio.NewReader(out))
	}
	files, _, _, _ := pipes(t)
	if got := <-inBackground(c, interactive(dir, "exit 0", false, files...)); !errors.Is(got.err,
		drivers.ErrTooManyExecs) {
		t.Errorf("one more: %+v", got)
	}
	if got := <-inBackground(c, interactive(dir, "exit 4", false)); got.err != nil || got.Exit.ExitCode != 4 {
		t.Errorf("a script check: %+v", got)
	}
	for i, done := range running {
		ins[i].Close()
		if got := <-done; got.err != nil || got.Exit.ExitCode != 5 {
			t.Errorf("%+v", got)
		}
	}
}

// TestFilesAreClosed on every path: those of a request that is refused or malformed, and those that belong to none.
func TestFilesAreClosed(t *testing.T) {
	exec := `{"ID":1,"Op":"exec","Task":"none","Files":3,"Spec":{"Path":"L2Jpbi90cnVl","Dir":"Lw=="}}`
	for name, tc := range map[string]struct {
		text string
		send int  // files
		ends bool // the connection, for what was said can't be distinguished from other requests any more
	}{
		"no task":               {exec, 3, false},
		"two of three":          {exec, 2, true},
		"none of three":         {exec, 0, true},
		"one more":              {exec, 4, true},
		"two":                   {strings.Replace(exec, `"Files":3`, `"Files":2`, 1), 2, false},
		"no spec":               {`{"ID":1,"Op":"exec","Files":3}`, 3, false},
		"no terminal":           {strings.Replace(exec, `"Files"`, `"TTY":true,"Files"`, 1), 3, false},
		"an unknown operation":  {`{"ID":1,"Op":"dance","Files":2}`, 2, false},
		"with a list":           {`{"ID":1,"Op":"list","Files":2}`, 2, false},
		"not announced":         {`{"ID":1,"Op":"list"}`, 2, true},
		"a negative number":     {`{"ID":1,"Op":"list","Files":-1}`, 2, true},
		"more than there may":   {`{"ID":1,"Op":"keepopen","Files":201}`, 3, true},
		"no number of its own":  {`{"Op":"exec","Files":3}`, 3, true},
		"no JSON":               {`{"ID":`, 3, true},
		"with a cancellation":   {`{"ID":1,"Op":"cancel","Files":1}`, 1, false},
		"kept open to its end":  {`{"ID":1,"Op":"keepopen","Files":2}`, 2, false},
		"cut short":             {"", 3, true},
		"a length beyond all":   {"\xff", 3, true},
		"as many as the kernel": {`{"ID":1,"Op":"list"}`, 253, true},
	} {
		t.Run(name, func(t *testing.T) {
			fds := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
			var ends [2]*net.UnixConn
			for i, fd := range fds {
				f := os.NewFile(uintptr(fd), "pair")
				conn, err := net.FileConn(f)
				f.Close()
				must.OK(t, err)
				ends[i] = conn.(*net.UnixConn)
			}
			before := descriptors(t)
			served := make(chan error, 1)
			go func() { served <- keeper.ServeConn(t.TempDir(), ends[1]) }()
			head := binary.BigEndian.AppendUint32(nil, uint32(len(tc.text)))
			switch tc.text {
			case "":
				head = head[:2]
			case "\xff":
				head, tc.text = []byte("\xff\xff\xff\xff"), ""
			}
			var rights []byte
			if tc.send > 0 {
				sent := make([]int, tc.send)
				for i := range sent {
					sent[i] = 2
				}
				rights = unix.UnixRights(sent...)
			}
			if _, _, err := ends[0].WriteMsgUnix(append(head, tc.text...), rights, nil); err != nil {
				t.Fatal(err)
			}
			if !tc.ends && !strings.Contains(tc.text, "cancel") {
				if got, err := readFrame(ends[0]); err != nil ||
					(got["Err"] == nil) != strings.Contains(tc.text, "list") && !strings.Contains(tc.text, "keepopen") {
					t.Errorf("%v, %v", got, err)
				}
			}
			if tc.text == "" && len(head) == 2 || !tc.ends {
				ends[0].CloseWrite()
			}
			_ = ends[0].SetReadDeadline(time.Now().Add(polltest.Deadline()))
			if n, err := ends[0].Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("%d, %v; want the end", n, err)
			}
			if err := <-served; (err != nil) != tc.ends {
				t.Errorf("served: %v", err)
			}
			ends[0].Close()
			if after := descriptors(t); after > before-2 { // both ends are closed by now
				t.Errorf("%d descriptors, %d before", after, before)
			}
		})
	}
}

// descriptors returns how many this process has.
func descriptors(t *testing.T) int {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

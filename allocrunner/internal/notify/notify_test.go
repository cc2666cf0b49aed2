package notify_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/notify"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// TestMain is also a process that sends its argument.
func TestMain(m *testing.M) {
	if text := os.Getenv("SEND"); text != "" {
		conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
		if err == nil {
			_, err = conn.Write([]byte(text))
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("sent")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test has seen it
		unix.Exit(0)                          // os.Exit would let the race detector sleep for a second
	}
	os.Exit(m.Run())
}

// members are the processes of a task.
type members struct {
	mu   sync.Mutex
	pids map[int]bool
}

func (m *members) has(pid int) (has, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pids[pid], unix.Kill(pid, 0) == nil
}

// fixture is a socket of a task that this process belongs to.
type fixture struct {
	*notify.Socket
	t       *testing.T
	path    string
	members *members
	log     polltest.Log
}

func listen(t *testing.T) *fixture {
	t.Helper()
	dir := must.ShortDir(t)
	f := &fixture{t: t, path: notify.Path(dir, "web"), members: &members{pids: map[int]bool{os.Getpid(): true}}}
	f.Socket = must.Get(notify.Listen(notify.Config{Dir: dir, Task: "web", UID: uint32(os.Geteuid()),
		GID: uint32(os.Getegid()), Logger: slog.New(slog.NewTextHandler(&f.log, nil))}))(t)
	t.Cleanup(f.Close)
	f.Start(f.members.has)
	return f
}

func (f *fixture) dial() *net.UnixConn {
	f.t.Helper()
	conn := must.Get(net.DialUnix("unixgram", nil, &net.UnixAddr{Name: f.path, Net: "unixgram"}))(f.t)
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

func (f *fixture) send(text string) {
	f.t.Helper()
	must.Get(f.dial().Write([]byte(text)))(f.t)
}

// sender is a process of a user that says that the task is ready.
func (f *fixture) sender(uid uint32) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe")
	cmd.Env = []string{"SEND=READY=1", "NOTIFY_SOCKET=" + f.path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// until waits for a notice.
func (f *fixture) until(what string, ok func(drivers.Notice) bool) drivers.Notice {
	f.t.Helper()
	late := time.After(polltest.Deadline())
	for {
		n, changed := f.Current()
		if ok(n) {
			return n
		}
		select {
		case <-changed:
		case <-late:
			f.t.Fatalf("waited for %s, and got %+v; %s", what, n, f.log.String())
		}
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	f := listen(t)
	first, _ := f.Current()
	same.As(t, (drivers.Notice{Seq: 1}), first, "at first")
	f.send("STATUS=loading\nMAINPID=1\nFDSTORE=1\nX\n=\nREADY=2\n")
	if n := f.until("the status", func(n drivers.Notice) bool { return n.Status == "loading" }); n.Ready || n.Silent != 0 {
		t.Errorf("got %+v", n)
	}
	f.send("WATCHDOG=1\nREADY=1")
	n := f.until("ready", func(n drivers.Notice) bool { return n.Ready })
	if n.Status != "loading" || n.Stopping || n.Silent <= 0 {
		t.Errorf("got %+v", n)
	}
	f.send("STOPPING=1\nWATCHDOG=trigger")
	f.until("stopping", func(n drivers.Notice) bool { return n.Stopping && n.Trigger })
}

// TestStatusOfAnything: a status is one printable line, whatever came, and the flood of statuses is not made known.
func TestStatusOfAnything(t *testing.T) {
	t.Parallel()
	f := listen(t)
	f.send("STATUS=a\xff\x1b[31mb\x00" + strings.Repeat("ü", 1000))
	n := f.until("the status", func(n drivers.Notice) bool { return n.Status != "" })
	if want := "a\ufffd\ufffd[31mb\ufffd" + strings.Repeat("ü", 191); n.Status != want {
		t.Errorf("got %q", n.Status)
	}
	conn, before := f.dial(), n.Seq
	const many = 600
	began := time.Now()
	for i := range many {
		must.Get(fmt.Fprintf(conn, "STATUS=%d", i))(t)
	}
	n = f.until("the last status", func(n drivers.Notice) bool { return n.Status == fmt.Sprint(many-1) })
	if most := uint64(time.Since(began)/time.Second) + 2; n.Seq-before > most {
		t.Errorf("%d statuses were made known, want at most %d", n.Seq-before, most)
	}
}

// TestTooLong: a message of 64 kB is dropped, and the next one counts.
func TestTooLong(t *testing.T) {
	t.Parallel()
	f := listen(t)
	f.send("READY=1\n" + strings.Repeat("x", 64<<10))
	f.send("STATUS=" + strings.Repeat("y", 5000) + "\nREADY=1")
	f.send("STOPPING=1")
	if n := f.until("the last", func(n drivers.Notice) bool { return n.Stopping }); n.Ready || n.Status != "" {
		t.Errorf("got %+v", n)
	}
}

// TestFilesAreClosed, after the messages before have been read: that is the barrier of sd_notify_barrier(3).
func TestFilesAreClosed(t *testing.T) {
	t.Parallel()
	f := listen(t)
	fd := must.Get(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	read, write, err := os.Pipe()
	must.OK(t, err)
	defer read.Close()
	f.send("READY=1")
	err = unix.Sendmsg(fd, []byte("BARRIER=1"), unix.UnixRights(int(write.Fd()), int(write.Fd())),
		&unix.SockaddrUnix{Name: f.path}, 0)
	must.OK(t, err)
	write.Close()
	_ = read.SetDeadline(time.Now().Add(polltest.Deadline()))
	if n, err := read.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
		t.Fatalf("the files were kept: %v", err)
	}
	if n, _ := f.Current(); !n.Ready {
		t.Errorf("the message before was not read: %+v", n)
	}
}

// TestSenders: only processes of the task count, and only those of its user. One that has gone is known by its user.
func TestSenders(t *testing.T) {
	t.Parallel()
	proctest.NeedRoot(t)
	const other = 65534
	for _, c := range []struct {
		name   string
		uid    uint32
		member bool
		gone   bool
		counts bool
	}{
		{"a process of the task", 0, true, false, true},
		{"a process of another task", 0, false, false, false},
		{"a process of the task with another user", other, true, false, false},
		{"another user's process", other, false, false, false},
		{"a process that has gone", 0, false, true, true},
		{"another user's process that has gone", other, false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := listen(t)
			must.OK(t, os.Chmod(f.path, 0o666)) // otherwise another user can't send at all
			f.members.mu.Lock()                 // nothing is judged before the sender is known
			cmd := f.sender(c.uid)
			in := must.Get(cmd.StdinPipe())(t)
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			must.OK(t, err)
			said := make([]byte, 100)
			n, _ := out.Read(said)
			if string(said[:n]) != "sent\n" {
				t.Fatalf("it said %q", said[:n])
			}
			end := func() { in.Close(); _ = cmd.Wait() }
			if c.gone {
				end()
			} else {
				defer end()
			}
			f.members.pids[cmd.Process.Pid] = c.member
			f.members.mu.Unlock()
			f.send("STOPPING=1")
			if n := f.until("the last", func(n drivers.Notice) bool { return n.Stopping }); n.Ready != c.counts {
				t.Errorf("got %+v, want ready %v; %s", n, c.counts, f.log.String())
			}
			if logged := f.log.Has("dropped"); logged == c.counts {
				t.Errorf("the log: %q", f.log.String())
			}
		})
	}
}

// TestOnlyItsUserCanConnect, not even with the path.
func TestOnlyItsUserCanConnect(t *testing.T) {
	t.Parallel()
	proctest.NeedRoot(t)
	f := listen(t)
	if out, err := f.sender(65534).CombinedOutput(); err == nil || !strings.Contains(string(out), "permission denied") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPathTooLong(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	must.OK(t, os.Mkdir(dir, 0o700))
	_, err := notify.Listen(notify.Config{Dir: dir, Task: "web"})
	same.Says(t, nil, "choose a shorter data directory", err)
}

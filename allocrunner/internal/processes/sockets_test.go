package processes_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestListeningSockets: a process finds them from descriptor 3 on, with its own number beside them, and nothing else;
// also one that becomes another user, and one that can't be executed says why.
func TestListeningSockets(t *testing.T) {
	users := []interfaces.User{{}}
	if os.Geteuid() == 0 {
		users = append(users, interfaces.User{Name: "nobody", UID: 65534, GID: 65534})
	}
	for _, user := range users {
		t.Run(user.Name, func(t *testing.T) {
			for _, n := range []int{1, 2, 12} {
				e := newLocal(t, processes.Config{})
				script := `[ "$LISTEN_PID" = $$ ] && echo mine; cd /proc/$$/fd; echo $LISTEN_FDS $LISTEN_FDNAMES *`
				spec := e.spec("t", "/bin/sh", "-c", script)
				spec.User = user
				spec.Env = append(spec.Env, "LISTEN_PID=1", "LISTEN_FDS=99")
				names := []string{}
				var fds strings.Builder
				fds.WriteString("0 1 2")
				for i := range n {
					l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
					l.Close()
					names = append(names, fmt.Sprint("p", i))
					spec.Listen = append(spec.Listen, drivers.Listener{Name: names[i], Network: "tcp", HostIP: "127.0.0.1",
						Port: l.Addr().(*net.TCPAddr).Port})
				}
				e.start(spec)
				e.wait("t")
				e.killTree("t")
				got := e.output("t.stdout")
				for i := range n {
					fmt.Fprint(&fds, " ", 3+i)
				}
				// The shell has one more while it reads the directory.
				want := fmt.Sprintf("mine\n%d %s 0 1", n, strings.Join(names, ":"))
				fields := strings.Fields(got)
				if !strings.HasPrefix(got, want) || len(fields) < 3+3+n || len(fields) > 3+3+n+2 {
					t.Errorf("%d sockets: got %q %q, want %q and the descriptors %s", n, got, e.output("t.stderr"), want, fds.String())
				}

				spec.Path = "/nonexistent/program"
				_, err := e.Start(context.Background(), spec)
				if start, ok := errors.AsType[*drivers.StartError](err); !ok || !strings.Contains(start.Reason, "/nonexistent") {
					t.Errorf("%d sockets: a program that does not exist: %v", n, err)
				}
			}
		})
	}
}

// TestNoNotifications: a process without a socket, and a task without a process, have none to tell.
func TestNoNotifications(t *testing.T) {
	e := newLocal(t, processes.Config{})
	status := e.start(e.spec("t", "/bin/sleep", "1000"))
	for _, id := range []drivers.ProcessID{status.ID(), {Task: "other"}} {
		same.Error(t, drivers.ErrNotRunning, same.Err(e.Notice(t.Context(), id, 0)), id.Task)
	}
}

// TestNotificationsEnd with the process, for those who wait for more.
func TestNotificationsEnd(t *testing.T) {
	dir := must.Get(os.MkdirTemp("", "p"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := newLocal(t, processes.Config{Dir: dir})
	spec := e.spec("t", "/bin/sleep", "1000")
	spec.Notify = true
	status := e.start(spec)
	if status.Notice == nil || status.Notice.Ready {
		t.Errorf("its status is %+v", status)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := e.Notice(context.Background(), status.ID(), status.Notice.Seq)
		ended <- err
	}()
	e.killTree("t")
	same.Error(t, drivers.ErrNotRunning, <-ended)
	if left, _ := os.ReadDir(dir + "/.notify"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestWhoMaySpeak for a task: all of its processes, also those that have left their parent, their session and the
// environment's other variables; and no other process, even of the same user.
func TestWhoMaySpeak(t *testing.T) {
	self := must.Get(os.Executable())(t)
	for _, c := range []struct{ name, script string }{
		{"itself", `exec SAY`},
		{"a child", `SAY & wait`},
		{"a daemon", `(setsid SAY &) & wait; sleep 1000`},
		{"another process", `sleep 1000`},
	} {
		for _, noCgroup := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, no cgroup %v", c.name, noCgroup), func(t *testing.T) {
				dir := must.Get(os.MkdirTemp("", "p"))(t)
				t.Cleanup(func() { os.RemoveAll(dir) })
				e := newLocal(t, processes.Config{Dir: dir, Config: proctree.Config{NoCgroup: noCgroup}})
				spec := e.spec("t", "/bin/sh", "-c", strings.ReplaceAll(c.script, "SAY", self+" helper say READY=1"))
				spec.Notify = true
				spec.Env = append(spec.Env, "NOTIFY_SOCKET=/nowhere")
				status := e.start(spec)
				socket := "NOTIFY_SOCKET=" + dir + "/.notify/t"
				if c.name == "another process" {
					cmd := exec.CommandContext(t.Context(), self, "helper", "say", "READY=1")
					cmd.Env = []string{socket}
					cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
					out, err := cmd.StdoutPipe()
					if err == nil {
						err = cmd.Start()
					}
					must.OK(t, err)
					defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
					if said, _ := bufio.NewReader(out).ReadString('\n'); said != "said\n" {
						t.Fatalf("it says %q", said)
					}
					if n, err := e.Notice(t.Context(), status.ID(), 0); err != nil || n.Ready {
						t.Errorf("got %+v, %v", n, err)
					}
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				n, err := e.Notice(ctx, status.ID(), status.Notice.Seq)
				if status.Notice.Ready {
					n, err = *status.Notice, nil
				}
				if err != nil || !n.Ready {
					t.Errorf("got %+v, %v; %q", n, err, e.output("t.stdout"))
				}
			})
		}
	}
}

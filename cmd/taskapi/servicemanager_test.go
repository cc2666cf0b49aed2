package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskapi/internal/must"
)

// serviceManager is the socket of one.
func serviceManager(t *testing.T, dir string) (path string, conn *net.UnixConn) {
	t.Helper()
	path = filepath.Join(dir, "notify")
	conn = must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	t.Cleanup(func() { _ = conn.Close() })
	must.OK(t, conn.SetReadDeadline(time.Now().Add(deadline)))
	return path, conn
}

// TestServiceManager starts taskapi as systemd starts a unit of Type=notify with WatchdogSec=: it reports once that it
// is ready, when the tasks run, its status, and signs of life. Tasks don't get the socket. A watchdog's time that is no
// number is an error, and nothing begins.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, survivorJob)
	path, conn := serviceManager(t, dir)
	start := func(within string) taskapiProcess {
		return startCommandWith(t, self(t), []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=" + within},
			"run", "-data-dir", filepath.Join(dir, "data"), "-alloc-id", testAllocID, file)
	}
	var said []string // without signs of life
	hear := func(p taskapiProcess, want string) {
		t.Helper()
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				t.Fatalf("it never says %q, but %q: %v\n%s", want, said, err, p.out)
			}
			line := string(buf[:n])
			if line != "WATCHDOG=1" {
				said = append(said, line)
			}
			if strings.Contains(line, want) {
				return
			}
		}
	}

	wrong := start("soon")
	if err := wrong.Wait(); err == nil || !strings.Contains(wrong.out.String(), "WATCHDOG_USEC") {
		t.Errorf("a watchdog's time that is no number: %v\n%s", err, wrong.out)
	}

	p := start("300000")
	t.Cleanup(func() { _ = p.Process.Kill() })
	hear(p, "READY=1\nSTATUS=survivor.g[0] running, ")
	if last := said[len(said)-1]; !strings.HasSuffix(last, " of 2 tasks running, allocation "+testAllocID) {
		t.Errorf("it says %q", last)
	}
	hear(p, "WATCHDOG=1")
	hear(p, "WATCHDOG=1")
	for _, pid := range processesOf(t, filepath.Join(dir, "data")) {
		env, _ := os.ReadFile(filepath.Join("/proc", pid, "environ"))
		if bytes.Contains(env, []byte("NOTIFY_SOCKET")) && bytes.Contains(env, []byte("NOMAD_TASK_NAME")) {
			t.Errorf("task process %s has the socket in its environment", pid)
		}
	}
	must.OK(t, p.Process.Signal(syscall.SIGTERM))
	hear(p, "STATUS=survivor.g[0] complete, 0 of 2 tasks running")
	if err := p.Wait(); err != nil {
		t.Errorf("%v\n%s", err, p.out)
	}
	if n := strings.Count(strings.Join(said, "\n"), "READY=1"); n != 1 {
		t.Errorf("it was ready %d times: %q", n, said)
	}
}

const pairJob = `job "pair" {
  group "g" {
    count = 2
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
`

// TestServiceManagerOfAll starts run --all as systemd starts a unit of Type=notify: it is ready when every allocation
// has started, gives signs of life, and a SIGTERM stops all. The processes of the allocations say nothing.
func TestServiceManagerOfAll(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, pairJob)
	path, conn := serviceManager(t, dir)
	data := filepath.Join(dir, "data")
	p := startCommandWith(t, self(t), []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=300000"},
		"run", "--all", "-data-dir", data, file)
	killLeft(t, data)
	t.Cleanup(func() { _ = p.Process.Kill() })
	for _, want := range []string{"READY=1\nSTATUS=2 allocations of job pair", "WATCHDOG=1", "WATCHDOG=1"} {
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("it says %q (%v), want %q\n%s", buf[:n], err, want, p.out)
		}
	}
	must.OK(t, p.Process.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil {
		t.Errorf("%v\n%s", err, p.out)
	}
	for _, label := range []string{"g[0] ", "g[1] "} {
		if !strings.Contains(p.out.String(), "  "+label) {
			t.Errorf("no line of %s:\n%s", label, p.out)
		}
	}
	if strings.Count(p.out.String(), "allocation is complete") != 2 {
		t.Errorf("not both have ended:\n%s", p.out)
	}
	if left := processesOf(t, data); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

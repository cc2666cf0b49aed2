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

// TestServiceManager starts taskapi as systemd starts a unit of Type=notify with WatchdogSec=: it reports once that it
// is ready, when the tasks run, its status, and signs of life. Tasks don't get the socket. A watchdog's time that is no
// number is an error, and nothing begins.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, survivorJob)
	path := filepath.Join(dir, "notify")
	conn := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	defer conn.Close()
	start := func(within string) taskapiProcess {
		return startCommandWith(t, self(t), []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=" + within},
			"run", "-data-dir", filepath.Join(dir, "data"), "-alloc-id", testAllocID, file)
	}
	var said []string // without signs of life
	hear := func(p taskapiProcess, want string) {
		t.Helper()
		must.OK(t, conn.SetReadDeadline(time.Now().Add(deadline)))
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

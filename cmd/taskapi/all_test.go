package main

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskapi/internal/must"
)

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
	path := filepath.Join(dir, "notify")
	conn := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	defer conn.Close()
	data := filepath.Join(dir, "data")
	p := startCommandWith(t, self(t), []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=300000"},
		"run", "--all", "-data-dir", data, file)
	t.Cleanup(func() {
		for _, pid := range processesOf(t, data) {
			_ = exec.Command("kill", "-9", pid).Run() // it may have ended
		}
	})
	t.Cleanup(func() { _ = p.Process.Kill() })
	must.OK(t, conn.SetReadDeadline(time.Now().Add(deadline)))
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

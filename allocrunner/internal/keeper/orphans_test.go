package keeper_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// reap is PID 1 with an orphan, until its standard input ends.
func reap() int {
	go keeper.ReapOrphans(context.Background())
	_ = exec.Command("/bin/sh", "-c", "sleep 1000 & exit 0").Run() // the exit code may be collected by the other
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// TestOrphansOfPID1 are collected by an agent that is PID 1.
func TestOrphansOfPID1(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace takes root to make")
	}
	cmd := exec.Command("/proc/self/exe", "reap")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	stdin := must.Get(cmd.StdinPipe())(t)
	stdout := must.Get(cmd.StdoutPipe())(t)
	if err := cmd.Start(); err != nil {
		t.Skip("no PID namespace can be made here:", err)
	}
	defer func() { stdin.Close(); cmd.Wait() }()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	orphans := func() []proc.Stat {
		all := must.Get(proc.All())(t)
		var found []proc.Stat
		for _, s := range all {
			if s.Parent == cmd.Process.Pid {
				found = append(found, s)
			}
		}
		return found
	}
	for len(orphans()) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("there is no orphan")
		}
		unix.Poll(nil, 2)
	}
	for _, s := range orphans() {
		must.OK(t, s.Kill())
	}
	for n := 0; len(orphans()) > 0; n++ {
		if n == 5000 {
			t.Fatalf("they stay: %+v", orphans())
		}
		unix.Poll(nil, 2)
	}
}

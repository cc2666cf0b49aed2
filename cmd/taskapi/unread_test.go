package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// fill writes to a pipe or a terminal until it takes no more, and says how much it took.
func fill(t *testing.T, f *os.File) (filled int) {
	t.Helper()
	again := must.Get(os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()),
		os.O_WRONLY|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0))(t)
	defer again.Close()
	for chunk := []byte(strings.Repeat("x", 1023) + "\n"); len(chunk) > 0; {
		n, err := syscall.Write(int(again.Fd()), chunk)
		switch {
		case errors.Is(err, syscall.EAGAIN): // what is shorter may fit
			chunk = chunk[:len(chunk)/2]
		case err != nil:
			t.Fatal(err)
		}
		filled += max(n, 0)
	}
	return filled
}

// unread are outputs that take nothing more, and that nobody reads.
func unread(t *testing.T, kind string) *os.File {
	t.Helper()
	reader, writer, err := os.Pipe()
	if kind == "terminal" {
		reader, writer = openTerminal(t)
	}
	must.OK(t, err)
	t.Cleanup(func() { reader.Close(); writer.Close() })
	fill(t, writer)
	return writer
}

// TestNobodyReadsTheOutput of taskapi run: tasks start, a restart over the API is done, and one SIGTERM stops it
// gracefully, with its exit code.
func TestNobodyReadsTheOutput(t *testing.T) {
	for _, kind := range []string{"pipe", "terminal"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			file := jobFile(t, survivorJob)
			runs := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "fails", "local", "runs")
			p := unreadProcess(t, unread(t, kind), "run", "-v", "-data-dir", dir, "-alloc-id", testAllocID, file)
			until(t, p, "the task runs", func() bool { return countLines(runs) == 1 })
			r := &running{t: t, layout: datadir.Dir(dir)}
			client := r.client(r.layout.OperatorSocket(testAllocID), r.file("operator.token"))
			until(t, p, "the restart is begun", func() bool { // it is refused until taskapi knows that the task runs
				return client.Allocations().Restart(&api.Allocation{ID: testAllocID}, "fails", nil) == nil
			})
			until(t, p, "the task runs again", func() bool { return countLines(runs) == 2 })
			endsOf(t, p, syscall.SIGTERM)
			if saved, err := r.layout.Saved(testAllocID); err != nil || !saved.Terminal ||
				saved.Alloc.ClientStatus != api.AllocClientStatusComplete {
				t.Errorf("the allocation is %+v, %v", saved, err)
			}
		})
	}
}

// TestNobodyReadsWhatASecondSignalSays has a task that ignores its signal ended at once all the same.
func TestNobodyReadsWhatASecondSignalSays(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, stubbornJob)
	p := unreadProcess(t, unread(t, "pipe"), "run", "-data-dir", dir, "-alloc-id", testAllocID, file)
	there := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "stubborn", "local", "there")
	until(t, p, "the task runs", func() bool { return exists(there) })
	must.OK(t, p.Process.Signal(syscall.SIGINT))
	until(t, p, "the stop has begun", func() bool { return exists(there + ".signalled") })
	endsOf(t, p, syscall.SIGTERM)
}

// TestNobodyReadsWhatAStopSays does not keep the command from ending, whether another taskapi runs the allocation or
// has been killed.
func TestNobodyReadsWhatAStopSays(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%t", killed), func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			p := startProcess(t, dir, jobFile(t, orderlyJob))
			there := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "main", "local", "there")
			until(t, p, "the task runs", func() bool { return exists(there) })
			if killed {
				kill(t, p)
			}
			endsOf(t, unreadProcess(t, unread(t, "pipe"), "stop", "-data-dir", dir), syscall.Signal(0))
			if saved, err := datadir.Dir(dir).Saved(testAllocID); err != nil || !saved.Terminal {
				t.Errorf("the allocation is %+v, %v", saved, err)
			}
		})
	}
}

const stubbornJob = `
job "stubborn" {
  type = "batch"
  group "g" {
    task "stubborn" {
      driver       = "raw_exec"
      kill_timeout = "1h"
      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'touch local/there.signalled' INT; touch local/there; while :; do sleep 0.05; done"]
      }
    }
  }
}
`

// unreadProcess returns the program with an output that nobody reads.
func unreadProcess(t *testing.T, output *os.File, args ...string) taskapiProcess {
	t.Helper()
	p := newProcess(self(t), args...)
	p.Stdout, p.Stderr = output, output
	must.OK(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() }) // it has ended, unless the test fails
	return p
}

// endsOf has a signal end a process well.
func endsOf(t *testing.T, p taskapiProcess, sig syscall.Signal) {
	t.Helper()
	must.OK(t, p.Process.Signal(sig))
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(deadline):
		t.Errorf("%v does not end it", sig)
	}
}

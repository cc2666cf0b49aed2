package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/client"
)

const versionedJob = `
variable "version" {}
job "versioned" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo ${var.version} >> local/versions; exec sleep 1000"]
      }
    }
  }
}
`

// TestAForcedUpdateOutlivesItsTaskapi makes taskapi leave just when the old version has ended and the new one is to
// begin: that was accepted, so the next taskapi begins it.
func TestAForcedUpdateOutlivesItsTaskapi(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, versionedJob)
	versions := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "t", "local", "versions")
	version := func(n int) string { return fmt.Sprintf("version=%d", n) }
	operator := client.New(datadir.Dir(dir), testAllocID)
	defer operator.Close()
	const rounds = 5
	for n := range rounds {
		p := startProcess(t, dir, file, "-var", version(n))
		until(t, p, fmt.Sprintf("version %d runs", n), func() bool {
			_, _, err := operator.Allocation(t.Context())
			return err == nil && countLines(versions) == n+1
		})
		ctx, cancel := context.WithCancel(t.Context())
		var updating sync.WaitGroup
		updating.Go(func() { // it may wait for what follows, and see that taskapi leave
			_ = cli.Run(ctx, []string{"update", "--data-dir", dir, "--replace", "--var", version(n + 1), testAllocID, file},
				testEnvironment(io.Discard, io.Discard))
		})
		until(t, p, "the old version has ended", func() bool { return strings.Contains(p.out.String(), "  Killed  ") })
		// for a moment of its own in what comes next, which takes some 20 ms
		time.Sleep(time.Duration(n) * 2 * time.Millisecond)
		endsOf(t, p, syscall.SIGUSR1)
		cancel()
		updating.Wait()
		if t.Failed() {
			t.Fatalf("round %d:\n%s", n, p.out)
		}
		if saved, err := datadir.Dir(dir).Saved(testAllocID); err != nil || saved.Terminal {
			t.Fatalf("round %d: %+v, %v; want the next version, not over:\n%s", n, saved, err, p.out)
		}
	}
	taskapi(t, "stop", "--data-dir", dir, testAllocID)
}

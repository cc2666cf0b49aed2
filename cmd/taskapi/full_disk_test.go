package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
)

const briefJob = `
job "brief" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
`

// TestRunOnAFullDisk says why there is no allocation, also when the log can't, and leaves no directory of an allocation
// that has not got as far as its task, however much room there is.
func TestRunOnAFullDisk(t *testing.T) {
	t.Parallel()
	for pages := range 8 {
		for _, detach := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d pages, detach %v", pages, detach), func(t *testing.T) {
				t.Parallel()
				small := disktest.Mount(t, "size=1m,mode=711")
				room := writeFile(t, filepath.Join(small.Dir, "room"), strings.Repeat("x", pages*os.Getpagesize()))
				small.Fill()
				must.OK(t, os.Remove(room))
				p := startCommand(t, self(t), "run", "--data-dir", small.Dir, fmt.Sprintf("--detach=%v", detach),
					jobFile(t, briefJob))
				err := p.Wait()
				out := p.out.String()
				if err != nil && !strings.Contains(out, "no space left on device") && !strings.Contains(out, "; make room on ") {
					t.Errorf("%v: %q", err, out)
				}
				if err == nil && pages == 0 {
					t.Errorf("it has succeeded: %q", out)
				}
				dirs, err := datadir.Dir(small.Dir).IDs()
				must.OK(t, err)
				for _, id := range dirs {
					if dir := datadir.Dir(small.Dir).Alloc(id); !exists(filepath.Join(dir, "t")) {
						left, _ := os.ReadDir(dir)
						t.Errorf("it has left %v: %q", left, out)
					}
				}
			})
		}
	}
}

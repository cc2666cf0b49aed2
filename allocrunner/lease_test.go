package allocrunner_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// fileLease is a lease for as long as somebody has its file open.
type fileLease struct{ file *os.File }

func newFileLease(t *testing.T, path string) fileLease {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(file.Fd()), unix.LOCK_SH)
	}
	must.OK(t, err)
	t.Cleanup(func() { file.Close() })
	return fileLease{file}
}

func (l fileLease) Files() []*os.File { return []*os.File{l.file} }

// held reports whether somebody holds the lease of that path.
func held(t *testing.T, path string) bool {
	t.Helper()
	file, err := os.Open(path)
	must.OK(t, err)
	defer file.Close()
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatal(err)
	}
	return err != nil
}

func untilFree(t *testing.T, path string) {
	t.Helper()
	if !polltest.Until(func() bool { return !held(t, path) }) {
		t.Fatal("the lease is held by nobody who should")
	}
}

// TestALeaseLivesWhileTasksRun, be it taskapi or the keeper that is killed, and ends when both are, and with the
// allocation.
func TestALeaseLivesWhileTasksRun(t *testing.T) {
	t.Parallel()
	for name, keeperDies := range map[string]bool{"by its keeper": false, "by the keeper after it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "lease")
			lease := newFileLease(t, path)
			r := runWith(t, "service", func(g *api.TaskGroup, c *config) {
				g.RestartPolicy.Attempts, g.RestartPolicy.Interval = new(1), new(time.Hour)
				c.Leases = func() []interfaces.Lease { return []interfaces.Lease{lease} }
			}, shell("t", "exec sleep 1000"))
			r.untilState("t", "running")
			if keeperDies {
				r.killKeeper()
				r.untilRestarted()
			}
			cfg := r.leave()
			lease.file.Close()
			if !held(t, path) {
				t.Fatal("the lease has ended while a task runs")
			}

			again := newFileLease(t, path)
			cfg.Leases = func() []interfaces.Lease { return []interfaces.Lease{again} }
			next := begin(t, cfg)
			next.untilState("t", "running")
			if keeperDies {
				next.leave()
				again.file.Close()
				next.killKeeper() // and with it all that held the lease
			} else {
				must.OK(t, next.runner.Stop(t.Context(), interfaces.StopRequest{}))
				_ = next.end()
				again.file.Close()
			}
			untilFree(t, path)
		})
	}
}

package hoststats_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/hoststats"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStats holds what is said of the machine against other ways to ask it.
func TestStats(t *testing.T) {
	busy := exec.Command("/bin/sh", "-c", "while :; do :; done")
	must.OK(t, busy.Start())
	defer func() { busy.Process.Kill(); busy.Wait() }()
	dir := t.TempDir()
	s, at, err := hoststats.New(dir).Stats(t.Context())
	must.OK(t, err)
	used := 0.0
	for _, c := range s.CPU {
		if sum := c.User + c.System + c.Idle; sum < 99.9 || sum > 100.1 || !strings.HasPrefix(c.CPU, "cpu") {
			t.Errorf("%+v", c)
		}
		used += c.User
	}
	if used <= 0 || len(s.CPU) < runtime.NumCPU() {
		t.Errorf("%d CPUs are used for %v %% while a process runs", len(s.CPU), used)
	}
	var info unix.Sysinfo_t
	must.OK(t, unix.Sysinfo(&info))
	if total := info.Totalram * uint64(info.Unit); s.Memory.Total != total || s.Memory.Used+s.Memory.Available != total ||
		s.Memory.Free == 0 {
		t.Errorf("memory = %+v of %d", s.Memory, total)
	}
	if s.Uptime == 0 || uint64(info.Uptime)-s.Uptime > 60 {
		t.Errorf("uptime = %d, want %d", s.Uptime, info.Uptime)
	}
	d := s.AllocDirStats
	if out, err := exec.Command("df", "--output=source,target", dir).Output(); err == nil {
		want := strings.Fields(strings.Split(string(out), "\n")[1])
		same.As(t, want[1], d.Mountpoint, "the file system is at")
	}
	if d.Size == 0 || d.Used+d.Available > d.Size || d.UsedPercent <= 0 || d.UsedPercent > 100 {
		t.Errorf("disk = %+v", d)
	}
	if len(s.DiskStats) != 1 || at.IsZero() {
		t.Errorf("%+v at %v", s, at)
	}
}

// TestManyReaders get the same sample, and a caller that goes away holds nobody up.
func TestManyReaders(t *testing.T) {
	h := hoststats.New(os.TempDir())
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	same.Fails(t, same.Err2(h.Stats(gone)), "a caller that has gone gets an answer")
	end := time.Now().Add(400 * time.Millisecond) // a sample serves for half a second from when it is there
	first, _, err := h.Stats(t.Context())
	must.OK(t, err)
	for time.Now().Before(end) {
		if again, _, err := h.Stats(t.Context()); err != nil || again != first && time.Now().Before(end) {
			t.Fatalf("another sample, %v", err)
		}
	}
	if _, _, err := hoststats.New("/nowhere").Stats(t.Context()); err == nil {
		t.Error("a directory that is not there has a file system")
	}
}

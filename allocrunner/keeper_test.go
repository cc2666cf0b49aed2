package allocrunner

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// TestKillOrphans kills what runs of an allocation that nobody controls, and counts it.
func TestKillOrphans(t *testing.T) {
	dir := t.TempDir()
	r := &Runner{cfg: interfaces.Config{Dir: dir}, logger: slog.New(slog.DiscardHandler)}
	s, _, err := r.supervise(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	_, err = s.Start(t.Context(), drivers.Spec{
		Task: "t", Path: "/bin/sh", Args: []string{"-c", "setsid sh -c '>child; exec sleep 1000' & exec sleep 1000"}, Dir: dir,
		Logs: drivers.LogSpec{Disabled: true}, Env: []string{"PATH=" + os.Getenv("PATH"), "NOMAD_TASK_NAME=t", keeperConfig(dir).Marker},
	})
	if err != nil {
		t.Fatal(err)
	}
	for err := os.ErrNotExist; err != nil; unix.Poll(nil, 2) {
		_, err = os.Stat(filepath.Join(dir, "child"))
	}
	if _, err := KillOrphans(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "controlled by another taskapi") || !TasksRunning(dir) {
		t.Errorf("while it is controlled: %v", err)
	}
	if err := s.Detach(); err != nil {
		t.Fatal(err)
	}
	if !TasksRunning(dir) {
		t.Error("no keeper is left")
	}
	if n, err := KillOrphans(t.Context(), dir); n != 2 || err != nil || TasksRunning(dir) {
		t.Errorf("%d killed, %v; left: %v", n, err, TasksRunning(dir))
	}
	if n, err := KillOrphans(t.Context(), dir); n != 0 || err != nil {
		t.Errorf("the second time: %d, %v", n, err)
	}
}

package revocation_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/must"
)

// TestFullDisk: a list opens on a full disk, shows what is revoked once there is room again, and a counter that had its
// place before is no trouble.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Skip("mounts no file system to fill up: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	before := open(t, filepath.Join(dir, "before"))
	ballast := filepath.Join(dir, "ballast")
	_ = os.WriteFile(ballast, make([]byte, 1<<20), 0o600) // until it is full
	during := open(t, filepath.Join(dir, "during"))
	for name, l := range map[string]*revocation.List{"before": before, "during": during} {
		if l.Revoked(&identity.Claims{ID: "i"}) {
			t.Errorf("%s: refused before it is revoked", name)
		}
		if _, err := l.Add(revocation.Rule{TokenID: "i"}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: Add = %v, want %v", name, err, syscall.ENOSPC)
		}
	}
	must.OK(t, os.Remove(ballast))
	for name, l := range map[string]*revocation.List{"before": before, "during": during} {
		add(t, open(t, filepath.Join(dir, name)), revocation.Rule{TokenID: "i"})
		if !l.Revoked(&identity.Claims{ID: "i"}) {
			t.Errorf("%s: a revocation is not seen", name)
		}
	}
}

package revocation_test

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/disktest"
)

// TestFullDisk: a list opens on a full disk, shows what is revoked once there is room again, and a counter that had its
// place before is no trouble.
func TestFullDisk(t *testing.T) {
	small := disktest.Mount(t, "size=64k,mode=700")
	dir := small.Dir
	before := open(t, filepath.Join(dir, "before"))
	small.Fill()
	during := open(t, filepath.Join(dir, "during"))
	for name, l := range map[string]*revocation.List{"before": before, "during": during} {
		if l.Revoked(&identity.Claims{ID: "i"}) {
			t.Errorf("%s: refused before it is revoked", name)
		}
		if _, err := l.Add(revocation.Rule{TokenID: "i"}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: Add = %v, want %v", name, err, syscall.ENOSPC)
		}
	}
	small.Empty()
	for name, l := range map[string]*revocation.List{"before": before, "during": during} {
		add(t, open(t, filepath.Join(dir, name)), revocation.Rule{TokenID: "i"})
		if !l.Revoked(&identity.Claims{ID: "i"}) {
			t.Errorf("%s: a revocation is not seen", name)
		}
	}
}

package datadir_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// TestLeftovers: the next taskapi removes the unfinished files of one that was killed, and nothing else.
func TestLeftovers(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	alloc, secrets := d.Alloc(testID), filepath.Join(d.Alloc(testID), "t", "secrets")
	elsewhere := t.TempDir()
	for _, dir := range []string{secrets, filepath.Join(alloc, "evil")} {
		must.OK(t, os.MkdirAll(dir, 0o700))
	}
	must.OK(t, os.Symlink(elsewhere, filepath.Join(alloc, "evil", "secrets")))
	files := map[string]bool{ // whether it stays
		filepath.Join(alloc, ".settings.json."+rand.Text()):     false,
		filepath.Join(alloc, "settings.json"):                   true,
		filepath.Join(alloc, ".settings.json.mine"):             true,
		filepath.Join(secrets, ".nomad_token."+rand.Text()):     false,
		filepath.Join(secrets, "."+rand.Text()):                 false,
		filepath.Join(secrets, "nomad_token"):                   true,
		filepath.Join(elsewhere, ".settings.json."+rand.Text()): true,
	}
	for path := range files {
		must.OK(t, os.WriteFile(path, nil, 0o600))
	}
	must.OK(t, d.Make())
	must.OK(t, lock(t, d, d.Store("1")).Close())
	for path, stays := range files {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: %v; it is to stay: %v", path, err, stays)
		}
	}
}

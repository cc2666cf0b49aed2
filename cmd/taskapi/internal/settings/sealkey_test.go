package settings

import (
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"taskapi/internal/must"
)

// TestRememberKeyFile: the settings file names any path, and has it once when several write it.
func TestRememberKeyFile(t *testing.T) {
	dir := t.TempDir()
	const file = "/keys/a \"${b}\" %{c}\\d"
	before := must.Get(SealKeyOf(dir))(t)
	var writers errgroup.Group
	for range 8 {
		writers.Go(func() error { return before.Remember(file) })
	}
	must.OK(t, writers.Wait())
	if got, err := SealKeyOf(dir); err != nil || got.File != file {
		t.Errorf("%+v, %v, want %s", got, err, file)
	}
	if err := before.Remember("/keys/other"); err == nil || !strings.Contains(err.Error(), Name+":2 names another") {
		t.Errorf("%v, want a refusal of another file", err)
	}
	for _, odd := range []string{"/keys/a\nb", "/keys/\xff"} {
		err := KeyFile{path: t.TempDir() + "/" + Name}.Remember(odd)
		if err == nil || !strings.Contains(err.Error(), "control") {
			t.Errorf("%q: %v, want a refusal", odd, err)
		}
	}
}

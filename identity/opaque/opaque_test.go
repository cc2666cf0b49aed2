package opaque_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"taskapi/identity/opaque"
	"taskapi/internal/must"
)

// now is when most secrets of the tests are made.
var now = time.Unix(1_800_000_000, 0)

// mint returns a secret that stands for "the token", for an hour.
func mint(t *testing.T, dir string) string {
	t.Helper()
	secret := must.Get(opaque.Mint(dir, "the token", now.Add(time.Hour), now))(t)
	return secret
}

// TestSecret: it gives its token and no other does, in no other form; neither of the two is on the disk.
func TestSecret(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	secret, another := mint(t, dir), mint(t, dir)
	if token, err := opaque.Token(dir, secret); token != "the token" || err != nil || !opaque.Is(secret) ||
		secret == another {
		t.Errorf("%s gives %q, %v", secret, token, err)
	}
	for _, wrong := range []string{
		uuid.NewString(), "", strings.ToUpper(secret), "{" + secret + "}", strings.ReplaceAll(secret, "-", ""), secret[:35] +
			"/",
	} {
		if token, err := opaque.Token(dir, wrong); token != "" || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q gives %q, %v", wrong, token, err)
		}
	}
	if _, err := opaque.Token(filepath.Join(dir, "none"), secret); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("files = %v, %v", files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(dir, file.Name()))
		info, _ := file.Info()
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", file.Name(), info.Mode(), err)
		}
		for _, text := range []string{secret, strings.ReplaceAll(secret, "-", ""), "the token"} {
			if strings.Contains(file.Name()+string(content), text) {
				t.Errorf("%q is on the disk", text)
			}
		}
	}
}

// TestDamaged: a file that was changed or exchanged for another gives no token.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.Chmod(dir, 0o700))
	secret := mint(t, dir)
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	good := must.Read(t, files[0])
	mint(t, dir)
	both, _ := filepath.Glob(filepath.Join(dir, "*"))
	other, err := os.ReadFile(both[0])
	if both[0] == files[0] {
		other, err = os.ReadFile(both[1])
	}
	must.OK(t, err)
	later := strings.Replace(string(good), "1800003600", "1900000000", 1) // a longer life
	for _, content := range []string{"", string(good[:len(good)-1]), string(good) + "x", string(other), later} {
		must.OK(t, os.WriteFile(files[0], []byte(content), 0o600))
		if token, err := opaque.Token(dir, secret); token != "" || err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%.30q gives %q, %v", content, token, err)
		}
	}
}

// TestBoundOfManyAtOnce: the bound holds also where several would be the last one at the same time.
func TestBoundOfManyAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	for range opaque.Max - 1 {
		mint(t, dir)
	}
	var minting sync.WaitGroup
	for range 8 {
		minting.Go(func() {
			if _, err := opaque.Mint(dir, "the token", now.Add(time.Hour), now); err != nil && !errors.Is(err, opaque.ErrFull) {
				t.Error(err)
			}
		})
	}
	minting.Wait()
	if files, _ := os.ReadDir(dir); len(files) != opaque.Max {
		t.Errorf("%d files, want %d", len(files), opaque.Max)
	}
}

// TestBound: a directory takes so many, and those that have expired make room.
func TestBound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	for range opaque.Max {
		mint(t, dir)
	}
	if _, err := opaque.Mint(dir, "one more", now.Add(time.Hour), now); !errors.Is(err, opaque.ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if _, err := opaque.Mint(dir, "one more", now.Add(3*time.Hour), now.Add(time.Hour)); err != nil {
		t.Errorf("one more, when the others have expired: %v", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("%d files are left", len(files))
	}
}

package identity_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

func sealerOf(t *testing.T, ring *identity.Keyring, purpose string) *identity.Sealer {
	t.Helper()
	return must.Get(ring.Sealer(purpose))(t)
}

// TestSealerBinds: a value opens with its ring's seal key, for its purpose and at its place alone, and not when a bit
// of it is changed.
func TestSealerBinds(t *testing.T) {
	ring := identitytest.Keyring(t)
	s := sealerOf(t, ring, "variables")
	value := []byte("a secret that nobody else reads")
	sealed, err := s.Seal(value, "default/nomad/jobs/web")
	if err != nil || bytes.Contains(sealed, value) {
		t.Fatalf("sealed = %q, %v", sealed, err)
	}
	if again, _ := s.Seal(value, "default/nomad/jobs/web"); bytes.Equal(again, sealed) {
		t.Error("the same value was sealed to the same bytes twice")
	}
	if got, err := s.Open(sealed, "default/nomad/jobs/web"); !bytes.Equal(got, value) || err != nil {
		t.Errorf("opened = %q, %v", got, err)
	}
	if _, err := s.Open(sealed, "default/nomad/jobs/db"); !errors.Is(err, identity.ErrBadSeal) {
		t.Errorf("at another place: %v", err)
	}
	if _, err := sealerOf(t, ring, "something else").Open(sealed, "default/nomad/jobs/web"); !errors.Is(err,
		identity.ErrBadSeal) {
		t.Errorf("for another purpose: %v", err)
	}
	if _, err := sealerOf(t, identitytest.Keyring(t), "variables").Open(sealed, "default/nomad/jobs/web"); !errors.Is(err,
		identity.ErrForeignSeal) {
		t.Errorf("with another ring's key: %v", err)
	}
	for i := range sealed {
		damaged := bytes.Clone(sealed)
		damaged[i] ^= 1
		if _, err := s.Open(damaged, "default/nomad/jobs/web"); err == nil {
			t.Errorf("a value with byte %d changed was opened", i)
		}
		if _, err := s.Open(sealed[:i], "default/nomad/jobs/web"); err == nil {
			t.Errorf("the first %d bytes of a value were opened", i)
		}
	}
}

// TestSealerOutlivesKeys: neither a rotation nor the removal of signing keys loses what is sealed, also for a process
// that starts later.
func TestSealerOutlivesKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keyring")
	ring := mustOpen(t, dir)
	sealed := must.Get(sealerOf(t, ring, "variables").Seal([]byte("x"), "p"))(t)
	must.OK(t, ring.Remove(identitytest.Rotate(t, ring)))
	later := mustOpen(t, dir)
	if got, err := sealerOf(t, later, "variables").Open(sealed, "p"); string(got) != "x" || err != nil {
		t.Errorf("after a rotation and a removal: %q, %v", got, err)
	}
}

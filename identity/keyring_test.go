package identity_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// open opens the ring in a directory.
func open(dir string) (*identity.Keyring, error) {
	return identity.OpenKeyring(identity.KeyringConfig{Dir: dir})
}

func mustOpen(tb testing.TB, dir string) *identity.Keyring {
	tb.Helper()
	return must.Get(open(dir))(tb)
}

func TestKeyringIsMadeOnceAndPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "keyring with blanks")
	first := mustOpen(t, dir)
	keys := first.List()
	if len(keys) != 1 || keys[0].State != identity.KeyActive || uuid.Validate(keys[0].ID) != nil ||
		keys[0].CreatedAt.IsZero() {
		t.Fatalf("a new ring has %+v, want one active key with a UUID and a time", keys)
	}
	if diff := cmp.Diff(keys, mustOpen(t, dir).List()); diff != "" {
		t.Errorf("opened again (-first +second):\n%s", diff)
	}
	modes := map[string]os.FileMode{dir: 0o700}
	for _, name := range []string{"keys.sealed", "seal.key", "lock"} {
		modes[filepath.Join(dir, name)] = 0o600
	}
	for path, want := range modes {
		info := must.Get(os.Stat(path))(t)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("directory holds %v (%v), want three files", entries, err)
	}
}

func TestRotateAndRemove(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	ring := mustOpen(t, dir)
	v := newVerifier(t, identity.VerifierConfig{Local: ring})
	old := identitytest.Sign(t, ring, taskClaims())
	oldKey := ring.Active()

	newKey := must.Get(ring.Rotate())(t)
	oldKey.State = identity.KeyInactive
	if diff := cmp.Diff([]identity.KeyInfo{newKey, oldKey}, ring.List()); diff != "" ||
		newKey.State != identity.KeyActive {
		t.Errorf("after a rotation (-want +got):\n%s", diff)
	}
	if got := ring.Active(); got != newKey {
		t.Errorf("active is %+v, want the new key %+v", got, newKey)
	}
	verified, err := v.Verify(old, epoch)
	if err != nil {
		t.Fatalf("token of the key rotated out: %v", err)
	}
	if verified.KeyID != oldKey.ID {
		t.Errorf("the key that was active is %s, and %s signed", oldKey.ID, verified.KeyID)
	}
	if got, err := v.Verify(identitytest.Sign(t, ring, taskClaims()), epoch); err != nil || got.KeyID != newKey.ID {
		t.Errorf("new token: %+v, %v, want key %s", got, err, newKey.ID)
	}

	if err := ring.Remove(newKey.ID); !errors.Is(err, identity.ErrKeyActive) ||
		!strings.Contains(err.Error(), "rotate first") {
		t.Errorf("remove the active key: %v, want ErrKeyActive and what to do", err)
	}
	if err := ring.Remove(uuid.NewString()); !errors.Is(err, identity.ErrKeyNotFound) {
		t.Errorf("remove an unknown key: %v, want ErrKeyNotFound", err)
	}
	must.OK(t, ring.Remove(oldKey.ID))
	if _, err := v.Verify(old, epoch); !isReason(err, identity.ReasonUnknownKey) {
		t.Errorf("token of the removed key: %v, want reason unknown_key", err)
	}
	if v.Trusts(verified) {
		t.Error("a kept token of the removed key is still trusted")
	}
	if diff := cmp.Diff([]identity.KeyInfo{newKey}, mustOpen(t, dir).List()); diff != "" {
		t.Errorf("opened again after the removal (-want +got):\n%s", diff)
	}
}

func isReason(err error, want identity.Reason) bool {
	got, ok := identity.ReasonOf(err)
	return ok && got == want
}

func TestReloadTakesOverWhatAnotherChanged(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	mine, theirs := mustOpen(t, dir), mustOpen(t, dir)
	if changed, err := mine.Reload(); changed || err != nil {
		t.Errorf("reload without a change: %v, %v", changed, err)
	}
	must.Get(theirs.Rotate())(t)
	if changed, err := mine.Reload(); !changed || err != nil {
		t.Errorf("reload after a change: %v, %v", changed, err)
	}
	if diff := cmp.Diff(theirs.List(), mine.List()); diff != "" {
		t.Errorf("lists (-theirs +mine):\n%s", diff)
	}
	// Writing is from what is on disk, not from what was loaded last.
	must.Get(theirs.Rotate())(t)
	if _, err := mine.Rotate(); err != nil || len(mine.List()) != 4 {
		t.Errorf("rotated by two in turn: %v, %v, want 4 keys", mine.List(), err)
	}
}

func TestReloadKeepsTheKeysWhenTheRingIsGone(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	ring := mustOpen(t, dir)
	want := ring.List()
	must.OK(t, os.RemoveAll(dir))
	if changed, err := ring.Reload(); changed || !errors.Is(err, identity.ErrKeyringMissing) {
		t.Errorf("reload: %v, %v, want ErrKeyringMissing", changed, err)
	}
	if diff := cmp.Diff(want, ring.List()); diff != "" {
		t.Errorf("keys (-before +after):\n%s", diff)
	}
	// The directory and all in it are gone: that is the documented way to start over.
	if got := mustOpen(t, dir).List(); len(got) != 1 || got[0].ID == want[0].ID {
		t.Errorf("opened again: %v, want a key other than %v", got, want)
	}
	if changed, err := ring.Reload(); !changed || err != nil {
		t.Errorf("reload from the new ring: %v, %v", changed, err)
	}
}

// runWatch runs a watch until the test ends and returns its log.
func runWatch(t *testing.T, watch func(context.Context, *slog.Logger)) *polltest.Log {
	ctx, cancel := context.WithCancel(context.Background())
	log := new(polltest.Log)
	var done sync.WaitGroup
	done.Go(func() { watch(ctx, slog.New(slog.NewJSONHandler(log, nil))) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return log
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if !polltest.Until(holds) {
		t.Fatalf("still not: %s", what)
	}
}

func TestWatchSeesOtherProcesses(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	running := mustOpen(t, dir)
	v := newVerifier(t, identity.VerifierConfig{Local: running})
	old := identitytest.Sign(t, running, taskClaims())
	oldID := running.List()[0].ID
	runWatch(t, running.Watch)

	operator := mustOpen(t, dir)
	start := time.Now()
	rotated := must.Get(operator.Rotate())(t)
	eventually(t, "the new key signs", func() bool { return running.List()[0].ID == rotated.ID })
	must.OK(t, operator.Remove(oldID))
	eventually(t, "the removed key's token is refused", func() bool {
		_, err := v.Verify(old, epoch)
		return isReason(err, identity.ReasonUnknownKey)
	})
	t.Logf("rotation and removal were seen after %v together", time.Since(start))
}

func TestWatchOutlivesItsDirectory(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	ring := mustOpen(t, dir)
	runWatch(t, ring.Watch)
	must.OK(t, os.RemoveAll(dir))
	want := mustOpen(t, dir).List()
	eventually(t, "the new ring is loaded", func() bool { return cmp.Equal(want, ring.List()) })
}

// TestFirstStartRace opens a ring that is not there from several handles and several processes at once.
func TestFirstStartRace(t *testing.T) {
	if dir := os.Getenv("KEYRING_TO_OPEN"); dir != "" {
		io.ReadAll(os.Stdin) // until the parent starts all at once
		os.Stdout.WriteString("key " + mustOpen(t, dir).List()[0].ID + "\n")
		return
	}
	dir := filepath.Join(t.TempDir(), "keyring")
	const each = 4
	ids := make([]string, 2*each)
	start := make(chan struct{})
	gate, release, err := os.Pipe()
	must.OK(t, err)
	var all sync.WaitGroup
	for i := range each {
		all.Go(func() {
			<-start
			if ring, err := open(dir); err == nil {
				ids[i] = ring.List()[0].ID
			} else {
				t.Error(err)
			}
		})
		all.Go(func() {
			child := exec.Command(os.Args[0], "-test.run=^TestFirstStartRace$")
			child.Env = append(os.Environ(), "KEYRING_TO_OPEN="+dir)
			child.Stdin = gate
			out, err := child.Output()
			if err != nil {
				t.Errorf("child: %v: %s", err, out)
			}
			_, id, _ := strings.Cut(string(out), "key ")
			ids[each+i], _, _ = strings.Cut(id, "\n")
		})
	}
	close(start)
	release.Close()
	all.Wait()
	gate.Close()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("keys %q, want one and the same", ids)
		}
	}
}

func TestConcurrentWritersLoseNothing(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	mustOpen(t, dir)
	const writers, rotations = 4, 5
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			ring, err := open(dir)
			for range rotations {
				if err == nil {
					_, err = ring.Rotate()
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := len(mustOpen(t, dir).List()); got != 1+writers*rotations {
		t.Errorf("%d keys, want %d", got, 1+writers*rotations)
	}
}

func TestFirstStartCutShort(t *testing.T) {
	for name, left := range map[string][]string{
		"before anything was written": {"lock"},
		"after the seal key":          {"lock", "seal.key"},
		"before the mark":             {"lock", "seal.key", "keys.sealed"},
	} {
		t.Run(name, func(t *testing.T) {
			whole, cut := t.TempDir()+"/whole", t.TempDir()+"/cut"
			mustOpen(t, whole)
			must.OK(t, os.Mkdir(cut, 0o700))
			for _, file := range left {
				data := must.Read(t, filepath.Join(whole, file))
				if file == "lock" {
					data = nil // the mark is made last
				}
				write(t, filepath.Join(cut, file), data, 0o600)
			}
			mustOpen(t, cut)
			must.OK(t, os.Remove(filepath.Join(cut, "keys.sealed")))
			if _, err := open(cut); !errors.Is(err, identity.ErrKeyringMissing) {
				t.Errorf("after the start was completed and the keys removed: %v, want ErrKeyringMissing", err)
			}
		})
	}
}

// A damaged ring is an error, also one whose first start was cut short before the mark was made, and gets no mark.
func TestDamagedRingWithoutMark(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	mustOpen(t, dir)
	write(t, filepath.Join(dir, "keys.sealed"), []byte("damaged"), 0o600)
	write(t, filepath.Join(dir, "lock"), nil, 0o600)
	if _, err := open(dir); !errors.Is(err, identity.ErrKeyringDamaged) {
		t.Errorf("opened with %v, want ErrKeyringDamaged", err)
	}
	if mark, err := os.ReadFile(filepath.Join(dir, "lock")); err != nil || len(mark) > 0 {
		t.Errorf("it is marked %q, %v", mark, err)
	}
}

func write(tb testing.TB, path string, data []byte, mode os.FileMode) {
	tb.Helper()
	must.OK(tb, os.WriteFile(path, data, mode))
	must.OK(tb, os.Chmod(path, mode))
}

func TestEveryByteOfTheRingMatters(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	mustOpen(t, dir)
	for _, file := range []string{"keys.sealed", "seal.key"} {
		path := filepath.Join(dir, file)
		good := must.Read(t, path)
		for i := range good {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << (i % 8)
			write(t, path, bad, 0o600)
			if _, err := open(dir); err == nil {
				t.Fatalf("%s opens with byte %d changed", file, i)
			}
		}
		for name, bad := range map[string][]byte{
			"empty": {}, "cut": good[:len(good)-1], "longer": append(bytes.Clone(good), 0), "huge": make([]byte,
				2<<20), "text": []byte("hello\n"),
		} {
			write(t, path, bad, 0o600)
			if _, err := open(dir); !errors.Is(err, identity.ErrKeyringDamaged) || !strings.Contains(err.Error(), "restore") {
				t.Errorf("%s %s: %v, want ErrKeyringDamaged and what to do", file, name, err)
			}
		}
		write(t, path, good, 0o600)
	}
	mustOpen(t, dir)
}

func TestBadRings(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(dir string) error
		want  error  // nil: any
		text  string // what the operator reads
	}{
		{"keys gone", func(d string) error { return os.Remove(d + "/keys.sealed") }, identity.ErrKeyringMissing, "restore"},
		{"seal key gone", func(d string) error { return os.Remove(d + "/seal.key") }, identity.ErrKeyringMissing, "restore"},
		{"keys readable by the group", func(d string) error { return os.Chmod(d+"/keys.sealed", 0o640) },
			identity.ErrKeyringExposed, "chmod 0600"},
		{"keys readable by others", func(d string) error { return os.Chmod(d+"/keys.sealed", 0o604) },
			identity.ErrKeyringExposed, "chmod 0600"},
		{"seal key writable by the group", func(d string) error { return os.Chmod(d+"/seal.key", 0o620) },
			identity.ErrKeyringExposed, "chmod 0600"},
		{"directory open", func(d string) error { return os.Chmod(d, 0o755) }, identity.ErrKeyringExposed, "chmod 0700"},
		{"keys a directory", func(d string) error {
			return errors.Join(os.Remove(d+"/keys.sealed"), os.Mkdir(d+"/keys.sealed", 0o700))
		}, identity.ErrKeyringDamaged, "restore"},
		{"keys a symbolic link", func(d string) error {
			return errors.Join(os.Rename(d+"/keys.sealed", d+"/x"), os.Symlink("x", d+"/keys.sealed"))
		}, identity.ErrKeyringDamaged, "symbolic link"},
		{"a newer format",
			func(d string) error { return os.WriteFile(d+"/keys.sealed", []byte("taskapi keyring 2\nabc"), 0o600) }, nil,
			"newer taskapi"},
		{"directory a file", func(d string) error { return errors.Join(os.RemoveAll(d), os.WriteFile(d, nil, 0o600)) }, nil,
			"not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir() + "/keyring"
			mustOpen(t, dir)
			must.OK(t, c.spoil(dir))
			ring, err := open(dir)
			if err == nil || ring != nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v and %q in its text", err, c.want, c.text)
			}
		})
	}
}

func TestForeignOwnerIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only the superuser can give a file away; TestOwner in privatefile tests the rule itself")
	}
	for _, name := range []string{"", "/keys.sealed", "/seal.key"} {
		dir := t.TempDir() + "/keyring"
		mustOpen(t, dir)
		must.OK(t, os.Chown(dir+name, 12345, -1))
		if _, err := open(dir); !errors.Is(err, identity.ErrKeyringExposed) || !strings.Contains(err.Error(), "uid 12345") {
			t.Errorf("keyring%s of another user: %v, want ErrKeyringExposed", name, err)
		}
	}
}

func TestSealKeyElsewhere(t *testing.T) {
	c := identity.KeyringConfig{Dir: t.TempDir() + "/keyring", SealKeyFile: t.TempDir() + "/seal"}
	ring := must.Get(identity.OpenKeyring(c))(t)
	if _, err := os.Stat(c.Dir + "/seal.key"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a seal key in the ring's own directory: %v", err)
	}
	must.Get(ring.Rotate())(t)
	if _, err := open(c.Dir); !errors.Is(err, identity.ErrKeyringMissing) {
		t.Errorf("without the seal key: %v, want ErrKeyringMissing", err)
	}
	// A seal key that is there already, as from a secret store at boot, seals a new ring.
	second := identity.KeyringConfig{Dir: t.TempDir() + "/keyring", SealKeyFile: c.SealKeyFile}
	before, _ := os.ReadFile(c.SealKeyFile)
	must.Get(identity.OpenKeyring(second))(t)
	if after, _ := os.ReadFile(c.SealKeyFile); !bytes.Equal(before, after) {
		t.Error("a seal key that was there was replaced")
	}
}

func TestSealHidesTheSeeds(t *testing.T) {
	dir := t.TempDir() + "/keyring"
	ring := mustOpen(t, dir)
	file := must.Read(t, dir+"/keys.sealed")
	for _, clear := range []string{ring.List()[0].ID, "seed", "public"} {
		if bytes.Contains(file, []byte(clear)) {
			t.Errorf("the sealed file shows %q", clear)
		}
	}
}

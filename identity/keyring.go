package identity

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/chacha20poly1305"

	"taskapi/internal/privatefile"
)

// Errors of a key ring. Each is wrapped in an error that says what to do.
var (
	ErrKeyNotFound    = errors.New("no such key in the ring")
	ErrKeyActive      = errors.New("the key is active")
	ErrKeyringMissing = errors.New("the key ring is incomplete")
	ErrKeyringDamaged = errors.New("the key ring is damaged")
	ErrKeyringExposed = errors.New("the key ring is not private")
)

// Files in a key ring's directory.
const (
	ringFile = "keys.sealed"
	sealFile = "seal.key"
	// lockFile is locked by writers; its content says that the ring was made once.
	lockFile = "lock"
)

// KeyState is the use of a key of the ring.
type KeyState string

const (
	KeyActive   KeyState = "active"   // signs and verifies
	KeyInactive KeyState = "inactive" // verifies the tokens that it signed before it was rotated out
)

// KeyInfo describes a key of the ring.
type KeyInfo struct {
	ID        string // a UUID, the kid of its tokens
	State     KeyState
	CreatedAt time.Time
}

// KeyringConfig says where a key ring is.
type KeyringConfig struct {
	// Dir is the ring's directory. Required. It is made, with mode 0700, if it is missing.
	Dir string
	// SealKeyFile holds the 32 bytes that the ring is sealed with. Empty means seal.key in Dir. It is made, with mode
	// 0600, together with a new ring, unless it exists; its directory must exist.
	SealKeyFile string
	// CheckCreate is called before a first ring is made. An error says why a ring must have existed, and none is made. Nil
	// allows it.
	CheckCreate func() error
}

// Keyring is an Ed25519 key ring on disk: one active key, and older ones that still verify. Any number of processes of
// one user may share it. Writers exclude one another by a lock, and readers see the ring before or after a change.
//
// Keys, List, Active, Sign and JWKS use the ring that was loaded last, without a lock or I/O.
type Keyring struct {
	config  KeyringConfig
	current atomic.Pointer[ring]
	// mu serialises loads and writes, so it is held during I/O. Nothing on a request's path takes it.
	mu sync.Mutex
}

// ring is a key ring as loaded. It never changes.
type ring struct {
	version privatefile.Version
	stored  *storedRing
	infos   []KeyInfo // newest first
	keys    *KeySet
	signer  ed25519.PrivateKey

	replaced chan struct{} // closed when another ring has replaced this one
}

func newRing(stored *storedRing, version privatefile.Version) *ring {
	r := &ring{
		version: version,
		stored:  stored,
		keys:    &KeySet{keys: make(map[string]*publicKey, len(stored.Keys))},
		signer:  ed25519.NewKeyFromSeed(stored.Seed),

		replaced: make(chan struct{}),
	}
	for _, k := range slices.Backward(stored.Keys) {
		r.infos = append(r.infos, KeyInfo{ID: k.ID, State: KeyInactive, CreatedAt: k.CreatedAt})
		r.keys.keys[k.ID] = newPublicKey(k.Public)
	}
	r.infos[0].State = KeyActive
	return r
}

// OpenKeyring opens the key ring, and makes one with a first key if there has never been one. A ring that is missing,
// damaged or open to others is an error that wraps ErrKeyringMissing, ErrKeyringDamaged or ErrKeyringExposed, since a
// new key in its place would silently end every token that was issued.
func OpenKeyring(c KeyringConfig) (*Keyring, error) {
	if c.Dir == "" {
		return nil, errors.New("open key ring: no directory given")
	}
	c.SealKeyFile = cmp.Or(c.SealKeyFile, filepath.Join(c.Dir, sealFile))
	k := &Keyring{config: c}
	// Make no directory where a backup has to be put.
	if _, err := os.Lstat(k.config.Dir); errors.Is(err, fs.ErrNotExist) {
		if err := k.checkFirst(); err != nil {
			return nil, fmt.Errorf("open key ring %s: %w", k.config.Dir, err)
		}
	}
	if err := privatefile.EnsureDir(k.config.Dir); err != nil {
		return nil, fmt.Errorf("open key ring %s: %w", k.config.Dir, k.explain(k.config.Dir, err))
	}
	if err := k.locked(k.openLocked); err != nil {
		return nil, fmt.Errorf("open key ring %s: %w", k.config.Dir, err)
	}
	return k, nil
}

func (k *Keyring) openLocked(lock *privatefile.Lock) error {
	made, err := lock.Marked()
	if err != nil {
		return err
	}
	if _, err := privatefile.Stat(k.ringFile()); errors.Is(err, fs.ErrNotExist) && !made {
		if err := k.checkFirst(); err != nil {
			return err
		}
		sealKey := make([]byte, chacha20poly1305.KeySize)
		rand.Read(sealKey) // never fails (crypto/rand)
		// An existing seal key is used, also on a read-only file system: the operator has brought it, or a first start
		// that was cut short has left it.
		if err := privatefile.Create(k.config.SealKeyFile, sealKey); err != nil {
			if _, missing := os.Lstat(k.config.SealKeyFile); missing != nil {
				return fmt.Errorf("make seal key: %w", err)
			}
		}
		if err := k.writeLocked(new(storedRing).rotated()); err != nil {
			return err
		}
	}
	if err := k.load(); err != nil || made {
		return err
	}
	// The mark comes after the ring, so that a first start that was cut short is repeated.
	return lock.Mark()
}

// checkFirst refuses to make a ring where one must have existed.
func (k *Keyring) checkFirst() error {
	if k.config.CheckCreate == nil {
		return nil
	}
	if err := k.config.CheckCreate(); err != nil {
		return fmt.Errorf("%w: %s is gone: %w", ErrKeyringMissing, k.config.Dir, err)
	}
	return nil
}

func (s *storedRing) rotated() *storedRing {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails (crypto/rand)
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	key := storedKey{ID: uuid.NewString(), CreatedAt: time.Now().UTC().Truncate(time.Second), Public: public}
	return &storedRing{Keys: append(slices.Clone(s.Keys), key), Seed: seed}
}

// Rotate makes a new active key. Tokens of the older ones are still verified. The seed of the key that was active is
// forgotten.
func (k *Keyring) Rotate() (KeyInfo, error) {
	err := k.change(func(s *storedRing) (*storedRing, error) { return s.rotated(), nil })
	if err != nil {
		return KeyInfo{}, fmt.Errorf("rotate key ring %s: %w", k.config.Dir, err)
	}
	return k.Active(), nil
}

// Remove removes a key from the ring: its tokens are refused from now on. The error wraps ErrKeyNotFound or, since a
// ring always has an active key, ErrKeyActive.
func (k *Keyring) Remove(id string) error {
	err := k.change(func(s *storedRing) (*storedRing, error) {
		i := slices.IndexFunc(s.Keys, func(k storedKey) bool { return k.ID == id })
		switch i {
		case -1:
			return nil, ErrKeyNotFound
		case len(s.Keys) - 1:
			return nil, fmt.Errorf("%w and signs new tokens: rotate first, then remove it", ErrKeyActive)
		}
		return &storedRing{Keys: slices.Delete(slices.Clone(s.Keys), i, i+1), Seed: s.Seed}, nil
	})
	if err != nil {
		return fmt.Errorf("remove key %q from key ring %s: %w", id, k.config.Dir, err)
	}
	return nil
}

// change replaces the ring on disk by the result of edit.
func (k *Keyring) change(edit func(*storedRing) (*storedRing, error)) error {
	return k.locked(func(*privatefile.Lock) error {
		if err := k.load(); err != nil {
			return err
		}
		changed, err := edit(k.current.Load().stored)
		if err != nil {
			return err
		}
		if err := k.writeLocked(changed); err != nil {
			return err
		}
		return k.load()
	})
}

// List returns the ring's keys, the newest first, which is the active one.
func (k *Keyring) List() []KeyInfo { return slices.Clone(k.current.Load().infos) }

// Active returns the key that signs.
func (k *Keyring) Active() KeyInfo { return k.current.Load().infos[0] }

// Keys makes the ring a KeySource.
func (k *Keyring) Keys() *KeySet { return k.current.Load().keys }

// Reload loads the changes of other processes, and reports whether there were any. Without a change it costs one
// lstat(2). After an error the keys are as before.
func (k *Keyring) Reload() (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	version, err := privatefile.Stat(k.ringFile())
	if err == nil && version == k.current.Load().version {
		return false, nil
	}
	if err := k.load(); err != nil {
		return false, fmt.Errorf("reload key ring %s: %w", k.config.Dir, err)
	}
	return true, nil
}

// Watch reloads the ring whenever it changes, until ctx ends: at once where inotify(7) works, and within a second
// elsewhere. A problem is logged once, not again while it stays the same.
func (k *Keyring) Watch(ctx context.Context, logger *slog.Logger) {
	WatchFile(ctx, k.ringFile(), reporting(logger.With("keyring", k.config.Dir), k.Keys, k.Reload))
}

func (k *Keyring) ringFile() string { return filepath.Join(k.config.Dir, ringFile) }

// locked runs do alone among all goroutines and processes.
func (k *Keyring) locked(do func(*privatefile.Lock) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	lock, err := privatefile.Acquire(filepath.Join(k.config.Dir, lockFile))
	if err != nil {
		return err
	}
	return errors.Join(do(lock), lock.Release())
}

// load reads the ring and publishes it. The caller holds k.mu; the lock file need not be locked.
func (k *Keyring) load() error {
	file, version, err := privatefile.Read(k.ringFile(), sealedLimit)
	if err != nil {
		return k.explain(k.ringFile(), err)
	}
	sealKey, err := k.readSealKey()
	if err != nil {
		return err
	}
	stored, err := unseal(file, sealKey)
	if errors.Is(err, errNewerFormat) {
		return fmt.Errorf("%s %w: use that version", k.ringFile(), err)
	}
	if err != nil {
		return k.damaged(k.ringFile(), err)
	}
	if old := k.current.Swap(newRing(stored, version)); old != nil {
		close(old.replaced)
	}
	return nil
}

// Replaced returns a channel that is closed when the current keys are replaced.
func (k *Keyring) Replaced() <-chan struct{} { return k.current.Load().replaced }

func (k *Keyring) readSealKey() ([]byte, error) {
	sealKey, _, err := privatefile.Read(k.config.SealKeyFile, chacha20poly1305.KeySize)
	if err != nil {
		return nil, k.explain(k.config.SealKeyFile, err)
	}
	if len(sealKey) != chacha20poly1305.KeySize {
		return nil, k.damaged(k.config.SealKeyFile, errSealKeySize)
	}
	return sealKey, nil
}

func (k *Keyring) writeLocked(stored *storedRing) error {
	sealKey, err := k.readSealKey()
	if err != nil {
		return err
	}
	file, err := stored.seal(sealKey)
	if err != nil {
		return err
	}
	return privatefile.Write(k.ringFile(), file)
}

// explain returns the error of a key ring for an error in reading one of its files, with what to do.
func (k *Keyring) explain(path string, err error) error {
	switch {
	case errors.Is(err, privatefile.ErrExposed):
		return fmt.Errorf("%w: %w", ErrKeyringExposed, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is gone: %s", ErrKeyringMissing, path, k.remedy())
	case errors.Is(err, privatefile.ErrNotRegular):
		return k.damaged(path, err)
	}
	return err
}

// damaged returns the error for a file of the ring whose content was changed.
func (k *Keyring) damaged(path string, err error) error {
	return fmt.Errorf("%w: %s %w: %s", ErrKeyringDamaged, path, err, k.remedy())
}

// remedy returns what an operator can do when a ring does not open.
func (k *Keyring) remedy() string {
	return "restore it from a backup or, to start over and end every token issued so far, remove the directory " +
		k.config.Dir
}

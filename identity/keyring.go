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

// Errors of a key ring. Each comes wrapped in what to do about it.
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
	// lockFile is locked by who writes; its content says that the ring was made once.
	lockFile = "lock"
)

// KeyState says what a key of the ring is for.
type KeyState string

const (
	KeyActive   KeyState = "active"   // signs and verifies
	KeyInactive KeyState = "inactive" // verifies what it signed before it was rotated out
)

// KeyInfo describes a key of the ring.
type KeyInfo struct {
	ID        string // a UUID, the kid of its tokens
	State     KeyState
	CreatedAt time.Time
}

// KeyringConfig says where a key ring is.
type KeyringConfig struct {
	// Dir is the ring's directory. Required. It is made, with mode 0700, where it is missing.
	Dir string
	// SealKeyFile holds the 32 bytes that the ring is sealed with. Empty means seal.key in Dir. It is made, with mode 0600, together
	// with a new ring, unless it is there already; its directory must exist.
	SealKeyFile string
	// CheckCreate is called before a first ring is made. Its error says why there must have been one. Nil allows it.
	CheckCreate func() error
}

// Keyring is an Ed25519 key ring on disk: one active key, and older ones that still verify. Any number of processes of one user
// may share it: writers exclude one another by a lock, and readers see a ring from before or after, never one between.
//
// Keys, List, Active, Sign and JWKS use what was loaded last, without a lock or I/O.
type Keyring struct {
	dir, sealKeyFile string
	checkCreate      func() error // nil allows it

	current atomic.Pointer[ring]
	// mu serialises what loads and writes, so it is held over I/O. Nothing on a request's path takes it.
	mu sync.Mutex
}

// ring is a key ring as loaded. It never changes.
type ring struct {
	version privatefile.Version
	stored  *storedRing
	infos   []KeyInfo // newest first
	keys    *KeySet
	signer  ed25519.PrivateKey

	replaced chan struct{} // closed when another has taken its place
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

// OpenKeyring opens the key ring, and makes one with a first key where there has never been one. A ring that was there and is
// missing, damaged or open to others is an error that wraps ErrKeyringMissing, ErrKeyringDamaged or ErrKeyringExposed: a new key
// in its place would silently end every token that was issued.
func OpenKeyring(c KeyringConfig) (*Keyring, error) {
	if c.Dir == "" {
		return nil, errors.New("open key ring: no directory given")
	}
	k := &Keyring{dir: c.Dir, sealKeyFile: cmp.Or(c.SealKeyFile, filepath.Join(c.Dir, sealFile)), checkCreate: c.CheckCreate}
	if _, err := os.Lstat(k.dir); errors.Is(err, fs.ErrNotExist) { // where a backup is to be put, nothing is to lie
		if err := k.checkFirst(); err != nil {
			return nil, fmt.Errorf("open key ring %s: %w", k.dir, err)
		}
	}
	if err := privatefile.EnsureDir(k.dir); err != nil {
		return nil, fmt.Errorf("open key ring %s: %w", k.dir, k.explain(k.dir, err))
	}
	if err := k.locked(k.openLocked); err != nil {
		return nil, fmt.Errorf("open key ring %s: %w", k.dir, err)
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
		if err := k.makeLocked(); err != nil {
			return err
		}
	}
	if err := k.load(); err != nil || made {
		return err
	}
	// Not before the ring is there: a first start that was cut short is a first start again.
	return lock.Mark()
}

// checkFirst refuses to make a ring where there must have been one.
func (k *Keyring) checkFirst() error {
	if k.checkCreate == nil {
		return nil
	}
	if err := k.checkCreate(); err != nil {
		return fmt.Errorf("%w: %s is gone: %w", ErrKeyringMissing, k.dir, err)
	}
	return nil
}

// makeLocked makes a ring with one key. A seal key that is there, brought by the operator or left by a first start that was cut
// short, is used.
func (k *Keyring) makeLocked() error {
	sealKey := make([]byte, chacha20poly1305.KeySize)
	rand.Read(sealKey) // never fails (crypto/rand)
	if err := privatefile.Create(k.sealKeyFile, sealKey); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make seal key: %w", err)
	}
	return k.writeLocked(new(storedRing).rotated())
}

// rotated returns the ring with a new active key.
func (s *storedRing) rotated() *storedRing {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails (crypto/rand)
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	key := storedKey{ID: uuid.NewString(), CreatedAt: time.Now().UTC().Truncate(time.Second), Public: public}
	return &storedRing{Keys: append(slices.Clone(s.Keys), key), Seed: seed}
}

// without returns the ring without one key.
func (s *storedRing) without(id string) (*storedRing, error) {
	i := slices.IndexFunc(s.Keys, func(k storedKey) bool { return k.ID == id })
	switch i {
	case -1:
		return nil, ErrKeyNotFound
	case len(s.Keys) - 1:
		return nil, fmt.Errorf("%w and signs new tokens: rotate first, then remove it", ErrKeyActive)
	}
	return &storedRing{Keys: slices.Delete(slices.Clone(s.Keys), i, i+1), Seed: s.Seed}, nil
}

// Rotate makes a new active key. Tokens of the older ones are still verified. The seed of the key that was active is forgotten.
func (k *Keyring) Rotate() (KeyInfo, error) {
	err := k.change(func(s *storedRing) (*storedRing, error) { return s.rotated(), nil })
	if err != nil {
		return KeyInfo{}, fmt.Errorf("rotate key ring %s: %w", k.dir, err)
	}
	return k.Active(), nil
}

// Remove takes a key out of the ring: its tokens are refused from now on. The error wraps ErrKeyNotFound or, since a ring is never
// without an active key, ErrKeyActive.
func (k *Keyring) Remove(id string) error {
	err := k.change(func(s *storedRing) (*storedRing, error) { return s.without(id) })
	if err != nil {
		return fmt.Errorf("remove key %q from key ring %s: %w", id, k.dir, err)
	}
	return nil
}

// change replaces the ring on disk by what edit makes of it.
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

// List returns the ring's keys, newest, which is the active one, first.
func (k *Keyring) List() []KeyInfo { return slices.Clone(k.current.Load().infos) }

// Active returns the key that signs.
func (k *Keyring) Active() KeyInfo { return k.current.Load().infos[0] }

// Keys makes the ring a KeySource.
func (k *Keyring) Keys() *KeySet { return k.current.Load().keys }

// Reload takes over what another process changed, and reports whether there was anything. Without a change it costs one lstat(2).
// After an error the keys are as before.
func (k *Keyring) Reload() (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	version, err := privatefile.Stat(k.ringFile())
	if err == nil && version == k.current.Load().version {
		return false, nil
	}
	if err := k.load(); err != nil {
		return false, fmt.Errorf("reload key ring %s: %w", k.dir, err)
	}
	return true, nil
}

// Watch reloads the ring whenever it changes, until ctx ends: at once where inotify(7) works, and within a second elsewhere. What
// goes wrong is logged once, not again while it stays the same.
func (k *Keyring) Watch(ctx context.Context, logger *slog.Logger) {
	watch(ctx, k.ringFile(), reporting(logger.With("keyring", k.dir), k.Keys, k.Reload))
}

func (k *Keyring) ringFile() string { return filepath.Join(k.dir, ringFile) }

// locked runs do alone: in this process and among others.
func (k *Keyring) locked(do func(*privatefile.Lock) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	lock, err := privatefile.Acquire(filepath.Join(k.dir, lockFile))
	if err != nil {
		return err
	}
	return errors.Join(do(lock), lock.Release())
}

// load reads the ring and publishes it. k.mu is held, the lock file need not be.
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

// Replaced returns a channel that is closed when the keys are no longer those of now.
func (k *Keyring) Replaced() <-chan struct{} { return k.current.Load().replaced }

func (k *Keyring) readSealKey() ([]byte, error) {
	sealKey, _, err := privatefile.Read(k.sealKeyFile, chacha20poly1305.KeySize)
	if err != nil {
		return nil, k.explain(k.sealKeyFile, err)
	}
	if len(sealKey) != chacha20poly1305.KeySize {
		return nil, k.damaged(k.sealKeyFile, errSealKeySize)
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

// explain puts an error in reading one of the ring's files into its class and says what to do.
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

// damaged says that a file of the ring is not what was written.
func (k *Keyring) damaged(path string, err error) error {
	return fmt.Errorf("%w: %s %w: %s", ErrKeyringDamaged, path, err, k.remedy())
}

// remedy returns what an operator can do about a ring that does not open.
func (k *Keyring) remedy() string {
	return "restore it from a backup or, to start over and end every token issued so far, remove the directory " + k.dir
}

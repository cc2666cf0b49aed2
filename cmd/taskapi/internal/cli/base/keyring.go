package base

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/identity"
)

// KeyFlags say where the key ring is.
type KeyFlags struct {
	DataDir string
	SealKey string
}

const SealKeyUsage = "`FILE` with the key that seals the key ring; the data directory remembers it (default seal.key " +
	"in the key ring)"

func (f *KeyFlags) Add(cmd *cobra.Command) {
	AddDataDir(cmd, &f.DataDir)
	cmd.Flags().StringVar(&f.SealKey, "seal-key", "", SealKeyUsage)
}

// OpenKeyring opens the data directory's key ring, and makes one when there is none and no allocation has tokens signed
// with an earlier one. The data directory's settings file remembers the file with the key that seals the ring.
func (l Layout) OpenKeyring(sealKey string) (*identity.Keyring, error) {
	kept, err := settings.SealKeyOf(string(l.Dir))
	if err != nil {
		return nil, Usage(err)
	}
	if err := l.tryCluster(); err != nil {
		return nil, Usage(err)
	}
	if sealKey == "" {
		sealKey = kept.File
	} else if sealKey, err = filepath.Abs(sealKey); err != nil {
		return nil, err
	}
	if _, err := os.Stat(sealKey); sealKey != "" && sealKey == kept.File && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the file with the key that seals the key ring, %s, is gone: restore it or, if it was moved, "+
			"change %s", sealKey, kept.From)
	}
	config := identity.KeyringConfig{Dir: l.Keyring(), SealKeyFile: sealKey, CheckCreate: l.noTokens}
	ring, err := identity.OpenKeyring(config)
	if err != nil || sealKey == kept.File {
		return ring, err
	}
	return ring, kept.Remember(sealKey)
}

// noTokens returns an error when an allocation of the data directory has tokens: with another key ring they would be
// refused silently.
func (l Layout) noTokens() error {
	entries, err := os.ReadDir(l.Allocs())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return agent.UnwrapPath(err)
	}
	for _, e := range entries {
		id := e.Name()
		dump, err := state.Inspect(l.State(id))
		if errors.Is(err, state.ErrNotFound) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("allocation %s may have tokens signed with its keys: %w: restore the key ring from a backup", id,
				err)
		}
		if saved := dump.Saved; saved.Alloc != nil && !saved.Terminal {
			return fmt.Errorf("allocation %s has not ended, and its tokens are signed with its keys: restore the key ring from "+
				"a backup, or run '%s'", id, l.Command("stop", id))
		}
	}
	return nil
}

// Open opens the key ring of the data directory that the flags name.
func (f *KeyFlags) Open(w Environment) (Layout, *identity.Keyring, error) {
	l, err := WithKeyring(f.DataDir, w)
	if err != nil {
		return l, nil, err
	}
	ring, err := l.OpenKeyring(f.SealKey)
	return l, ring, err
}

// WithKeyring returns the data directory that a flag names, which must have a key ring.
func WithKeyring(dataDir string, w Environment) (Layout, error) {
	l, err := NewLayout(dataDir, w)
	if err != nil {
		return l, err
	}
	if _, err := os.Stat(l.Keyring()); errors.Is(err, fs.ErrNotExist) {
		return l, fmt.Errorf("no key ring in %s: 'taskapi run' makes one; is --data-dir right?", string(l.Dir))
	}
	return l, nil
}

// Package datadir keeps allocations in a data directory. It promises that other users can't change the directory, that
// one process at a time runs an allocation, and that an allocation that has begun never starts over unless that is
// forced. It does not know how an allocation runs, or which command asks for it: its errors have types, and say what is
// wrong, not which command helps.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/state"
	"taskapi/internal/safedir"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// Dir is the path of a data directory. The names of the files in it are a promise to users.
type Dir string

// Open returns the directory at path, which need not exist. The result is absolute and without symbolic links, since
// the processes of an allocation are found by its directory. Errors: *UnusableError if others can change its content.
func Open(path string) (Dir, error) {
	dir, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("data directory %q: %w", path, err)
	}
	if !utf8.ValidString(dir) {
		err := fmt.Errorf("data directory %q is not UTF-8, in which the state of allocations is written: rename it",
			dir)
		return "", &UnusableError{err}
	}
	if dir, err = trust(dir); err != nil {
		return "", err
	}
	_, err = trust(Dir(dir).Allocs())
	return Dir(dir), err
}

// Trust returns an *UnusableError when others can change the content of a directory.
func Trust(dir string) error {
	_, err := trust(dir)
	return err
}

// trust returns a path without symbolic links, as far as it exists. Errors: *UnusableError.
func trust(dir string) (string, error) {
	whole, err := safedir.Trust(dir)
	switch {
	case errors.Is(err, safedir.ErrUnsafe):
		return "", &UnusableError{fmt.Errorf("data directory: %w", err)}
	case err != nil: // it can't be reached: its first use returns the error
		return resolve(dir), nil //nolint:nilerr // as above
	}
	return whole, nil
}

// resolve returns a path without symbolic links, as far as it exists.
func resolve(path string) string {
	if whole, err := filepath.EvalSymlinks(path); err == nil {
		return whole
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(resolve(parent), filepath.Base(path))
}

// SocketName is the name of a task's socket in its secrets directory.
const SocketName = "api.sock"

func (d Dir) Keyring() string                 { return filepath.Join(string(d), "keyring") }
func (d Dir) Revocations() string             { return filepath.Join(string(d), "revocations") }
func (d Dir) Cluster() string                 { return filepath.Join(string(d), "cluster") }
func (d Dir) Claims() string                  { return filepath.Join(string(d), "claims") }
func (d Dir) Names() string                   { return filepath.Join(string(d), "names") }
func (d Dir) Allocs() string                  { return filepath.Join(string(d), "allocs") }
func (d Dir) Alloc(id string) string          { return filepath.Join(d.Allocs(), id) }
func (d Dir) OperatorSocket(id string) string { return filepath.Join(d.Alloc(id), "operator.sock") }
func (d Dir) OperatorToken(id string) string  { return filepath.Join(d.Alloc(id), "operator.token") }
func (d Dir) OperatorSecrets(id string) string {
	return filepath.Join(d.Alloc(id), "operator.secrets")
}
func (d Dir) Claim(id string) string { return filepath.Join(d.Alloc(id), "claim.json") }
func (d Dir) State(id string) string { return filepath.Join(d.Alloc(id), state.FileName) }
func (d Dir) TaskSocket(id, task string) string {
	return filepath.Join(d.Alloc(id), task, "secrets", SocketName)
}

// Store returns the store that keeps each allocation's state in its directory. version is that of this taskapi.
func (d Dir) Store(version string) interfaces.Store {
	return state.Store{Path: d.State, Version: version}
}

// Make makes the directory. Other users may pass through it, to the directories of their tasks, but not read it.
func (d Dir) Make() error {
	for _, dir := range []string{string(d), d.Allocs()} {
		if err := safedir.MakePassable(dir); err != nil {
			return fmt.Errorf("data directory %s can't be made: %w", d, withoutPath(err))
		}
		if _, err := trust(dir); err != nil { // another user may have made it just before
			return err
		}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, string(d), unix.W_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("data directory %s is not writable: %w", d, err)
	}
	return nil
}

// withoutPath removes the path from an error, for a message that names it already.
func withoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// IsID reports whether a text has the form of an allocation's ID in Nomad.
func IsID(id string) bool {
	return len(id) == 36 && id == strings.ToLower(id) && uuid.Validate(id) == nil
}

// IDs returns the IDs of the allocations in the directory, sorted.
func (d Dir) IDs() ([]string, error) {
	entries, err := os.ReadDir(d.Allocs())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("allocations in %s: %w", d, withoutPath(err))
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && IsID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Ended returns the IDs of the allocations that have ended.
func (d Dir) Ended() ([]string, error) {
	ids, err := d.IDs()
	if err != nil {
		return nil, err
	}
	var ended []string
	for _, id := range ids {
		if saved, err := d.Saved(id); err == nil && saved.Terminal {
			ended = append(ended, id)
		}
	}
	return ended, nil
}

// Unbegun returns the IDs of allocations without a saved state that nobody is beginning: a process was killed before it
// saved the first one.
func (d Dir) Unbegun() ([]string, error) {
	ids, err := d.IDs()
	return slices.DeleteFunc(ids, func(id string) bool {
		_, begun := os.Lstat(filepath.Join(d.Alloc(id), "alloc"))
		if begun == nil {
			return true // its state was removed
		}
		if _, err := os.Lstat(d.State(id)); err != nil {
			return true // a process may be about to make it
		}
		_, err := d.Saved(id)
		return !errors.Is(err, state.ErrNotFound)
	}), err
}

// Lives reports whether an allocation has tasks or may get some: a process runs it, one of its tasks runs, or neither
// can be ruled out.
func (d Dir) Lives(id string) bool {
	saved, err := d.Saved(id)
	switch {
	case errors.Is(err, state.ErrNotFound), errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return true
	case saved.Terminal:
		return false
	}
	return allocrunner.TasksRunning(d.Alloc(id))
}

// RemoveLeftovers removes the remains of allocations whose removal was cut short.
func (d Dir) RemoveLeftovers() error { return allocdir.RemoveLeftovers(d.Allocs()) }

// Saved returns an allocation's saved state. Errors: those of state.Read; *DamagedError.
func (d Dir) Saved(id string) (*interfaces.Saved, error) {
	saved, err := state.Read(d.State(id))
	if err == nil {
		err = own(id, saved)
	}
	if err != nil {
		return nil, damaged(id, err)
	}
	return saved, nil
}

// own refuses the state of another allocation: somebody has copied that allocation's directory.
func own(id string, saved *interfaces.Saved) error {
	if saved.Alloc.ID != id {
		return fmt.Errorf("the state of allocation %s can't be used: it is of allocation %q", id, saved.Alloc.ID)
	}
	return nil
}

// Peek returns an allocation's saved state, also while another process writes it; nil when there is none. Errors: why
// it can't be read.
func (d Dir) Peek(id string) (*interfaces.Saved, error) {
	dump, err := state.Inspect(d.State(id))
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case len(dump.Problems) > 0:
		return nil, damaged(id, fmt.Errorf("%s: %w: %w", d.State(id), state.ErrDamaged, dump.Problems[0]))
	case dump.Saved.Alloc == nil: // nothing has been put yet
		return nil, nil
	}
	return dump.Saved, nil
}

package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// removedGrace is how long the keys of a file that was removed are trusted: who removes it means it, and who replaces it without a
	// rename has a moment to.
	removedGrace = 10 * time.Second
	// fileMaxStale is how long the last good set is trusted while the file can't be read or is bad.
	fileMaxStale = DefaultMaxStale
)

// FileSource is a JWK set in a file, followed as the file changes.
type FileSource struct {
	path    string
	current atomic.Pointer[KeySet]

	// mu guards what was last read and is held while reading. Nothing on a request's path takes it.
	mu       sync.Mutex
	document []byte
	err      error     // of that
	good     time.Time // when the set was last found to be that of the file
}

// OpenFileSource loads the set, which must be good.
func OpenFileSource(path string) (*FileSource, error) {
	s := &FileSource{path: path}
	if _, err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Keys makes the file a KeySource.
func (s *FileSource) Keys() *KeySet { return s.current.Load() }

// Reload looks at the file, takes over a set that changed, and reports whether it did. While the file is missing or bad it returns an
// error, which wraps ErrKeySet for bad content, and the set is the last good one, for a while: ten seconds when the file was removed, a day
// otherwise. Then no key of it is trusted. Without a change it costs one reading of the file.
func (s *FileSource) Reload() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed, err = s.reloadLocked()
	if err == nil {
		s.good = time.Now()
		return changed, nil
	}
	limit := fileMaxStale
	if errors.Is(err, fs.ErrNotExist) {
		limit = removedGrace
	}
	if time.Since(s.good) >= limit {
		s.current.Store(nil)
		s.document = nil      // what comes back is taken, also when it is the same
		if !s.good.IsZero() { // there were keys
			err = fmt.Errorf("no key of it is trusted any more after %v: %w", limit, err)
		}
	}
	return false, err
}

func (s *FileSource) reloadLocked() (changed bool, err error) {
	document, err := readBounded(s.path)
	if err != nil {
		return false, fmt.Errorf("load key set: %w", err)
	}
	if s.document != nil && bytes.Equal(document, s.document) {
		return false, s.err
	}
	s.document = document
	set, err := ParseJWKS(document)
	if err != nil {
		s.err = fmt.Errorf("load key set %s: %w", s.path, err)
		return false, s.err
	}
	s.err = nil
	s.current.Store(set)
	return true, nil
}

// Watch reloads the set whenever the file changes, until ctx ends: at once where inotify(7) works, and within a second elsewhere.
// What goes wrong is logged once, not again while it stays the same.
func (s *FileSource) Watch(ctx context.Context, logger *slog.Logger) {
	watch(ctx, s.path, reporting(logger.With("jwks", s.path), s.Keys, s.Reload))
}

// readBounded reads a file, and one byte more of it than ParseJWKS takes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, keySetLimit+1))
}

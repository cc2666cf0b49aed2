package identity

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"taskapi/internal/filehead"
)

// removedGrace is how long the keys of a removed file are trusted. Who removes the file means it; who replaces it
// without a rename needs a moment.
const removedGrace = 10 * time.Second

// FileSource is a JWK set in a file, followed as the file changes.
type FileSource struct {
	path string
	following
	mu sync.Mutex // held while the file is read; nothing on a request's path takes it
}

// OpenFileSource loads the set, which must be good.
func OpenFileSource(path string) (*FileSource, error) {
	s := &FileSource{path: path}
	if _, err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the file, takes over a set that changed, and reports whether it did. While the file is missing or bad it
// returns an error, which wraps ErrKeySet for bad content, and the last good set stays for a while: ten seconds when
// the file was removed, a day otherwise. Then no key of it is trusted.
func (s *FileSource) Reload() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	document, err := filehead.Read(s.path, keySetLimit+1) // ParseJWKS refuses the byte more
	grace := maxStale
	if errors.Is(err, fs.ErrNotExist) {
		grace = removedGrace
	}
	return s.take(document, err, "load key set "+s.path, grace)
}

// Watch reloads the set whenever the file changes, until ctx ends: at once where inotify(7) works, and within a second
// elsewhere. A problem is logged once, not again while it stays the same.
func (s *FileSource) Watch(ctx context.Context, logger *slog.Logger) {
	WatchFile(ctx, s.path, reporting(logger.With("jwks", s.path), s.Keys, s.Reload))
}

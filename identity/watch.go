package identity

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// recheck is how often a watched file is looked at without an event. Changes on network file systems, behind symbolic
// links, and after the directory was replaced cause no event. A look is one stat(2), or the reading of a key set.
const recheck = time.Second

// eventBuffer holds the longest single event (inotify(7): the structure and a name of NAME_MAX + 1 bytes), many times
// over.
const eventBuffer = 4 << 10

// WatchFile calls look at once, whenever something happens in path's directory, and every second, until ctx ends.
func WatchFile(ctx context.Context, path string, look func() bool) {
	events := inotify(filepath.Dir(path))
	if events == nil {
		poll(ctx, look)
		return
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, eventBuffer)
	for look(); ctx.Err() == nil; look() {
		_ = events.SetReadDeadline(time.Now().Add(recheck))
		if ctx.Err() != nil { // the deadline of AfterFunc may just have been overwritten
			return
		}
		// The events themselves do not matter: the file is looked at.
		if _, err := events.Read(buf); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			poll(ctx, look)
			return
		}
	}
}

// poll is WatchFile without events.
func poll(ctx context.Context, look func() bool) {
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for look(); ; look() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// reporting returns a function that reloads keys and reports whether that succeeded. It logs changes, the keys of the
// new set that can't be used, and an error if it differs from that of the last time.
func reporting(logger *slog.Logger, keys func() *KeySet, reload func() (bool, error)) func() bool {
	last := ""
	return func() bool {
		changed, err := reload()
		if err != nil {
			if err.Error() != last {
				last = err.Error()
				logger.Warn("keys can't be reloaded", "error", err, "keys", keys().Len())
			}
			return false
		}
		last = ""
		if changed {
			logger.Info("keys reloaded", "keys", keys().Len())
			for _, k := range keys().Skipped() {
				logger.Warn("key of another kind passed over", "kid", k.ID, "type", k.Type)
			}
		}
		return true
	}
}

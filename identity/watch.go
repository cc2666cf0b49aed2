package identity

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"
)

// recheck is how often a watched file is looked at without an event. Changes on network file systems, behind symbolic
// links, and after the directory was replaced cause no event. A look is one stat(2), or the reading of a key set.
const recheck = time.Second

// WatchFile calls look at once, whenever a name in path's directory changes or a file in it has been written, and every
// second, until ctx ends.
func WatchFile(ctx context.Context, path string, look func() bool) {
	changed, stop := watchDir(filepath.Dir(path))
	defer stop()
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for look(); ; look() {
		select {
		case <-ctx.Done():
			return
		case <-changed:
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
				logger.Warn("a key that is not for tokens here is passed over", "kid", k.ID, "type", k.Type)
			}
		}
		return true
	}
}

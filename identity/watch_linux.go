package identity

import (
	"taskapi/internal/filewatch"
)

// watched are the directories of all files that are watched.
var watched filewatch.Watcher

// watchDir returns a channel that gets an element when a name in the directory changes or a file in it has been
// written, until stop is called; nil if the kernel reports nothing.
func watchDir(dir string) (changed <-chan struct{}, stop func()) {
	watch, _ := watched.DirAt(dir)
	return watch.Changed(), watch.Close
}

// Package atomicfile replaces files in one step: a reader sees the old file or the new one, whole. It works in an open
// directory, which nobody can exchange for another meanwhile, and follows no link. It does not lock: of two who replace
// a file at the same time, the last wins.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Owner is a user and a group. A group of -1 stays as it is.
type Owner struct{ UID, GID int }

// Options are properties of the file, and of how it is written.
type Options struct {
	Mode fs.FileMode

	// Owner is the file's owner; nil: this process's user and group.
	Owner *Owner

	// Sync makes the file outlast a crash of the machine.
	Sync bool

	// Temporary is the name in the same directory under which the file is written; empty: a name that nobody can guess. A
	// file that a crash left under a given name is removed by the next call, so only this process's user may be able to
	// make files in the directory.
	Temporary string
}

// Replace writes the file at path; dir is its open directory. It replaces whatever was there, a link included. Errors:
// *fs.PathError; then the old file stays.
func Replace(dir int, path string, data []byte, o Options) error {
	return place(dir, path, data, o, func(from, to string) error { return unix.Renameat(dir, from, dir, to) })
}

// Create writes a new file, as Replace does. If the file exists, or another process makes it at the same time, the
// error wraps fs.ErrExist.
func Create(dir int, path string, data []byte, o Options) error {
	return place(dir, path, data, o, func(from, to string) error {
		err := unix.Linkat(dir, from, dir, to, 0)
		if err == nil {
			_ = unix.Unlinkat(dir, from, 0) // a second name does no harm
		}
		return err
	})
}

// leftover matches the names of files that are not yet in place.
var leftover = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\.(?:(.+)\.)?[A-Z2-7]{26}$`) })

// RemoveLeftovers removes from a directory what killed writers of the file with that name have left there, or, if the
// name is empty, killed writers of any file. No such writer may be running.
func RemoveLeftovers(dir *os.File, name string) {
	for {
		entries, err := dir.Readdirnames(1024) // a task may have put millions of files there
		for _, entry := range entries {
			if !strings.HasPrefix(entry, ".") {
				continue // before the expression has to be compiled
			}
			if match := leftover().FindStringSubmatch(entry); match != nil && (name == "" || match[1] == name) {
				_ = unix.Unlinkat(int(dir.Fd()), entry, 0)
			}
		}
		if err != nil { // the end, or a directory that can't be read
			return
		}
	}
}

func place(dir int, path string, data []byte, o Options, move func(from, to string) error) (err error) {
	name, temporary, random := filepath.Base(path), o.Temporary, rand.Text()
	switch {
	case temporary != "":
		_ = unix.Unlinkat(dir, temporary, 0) // if that fails, so does Openat
	case len(name)+len(random)+2 > unix.NAME_MAX:
		temporary = "." + random
	default:
		temporary = "." + name + "." + random
	}
	fd, err := unix.Openat(dir, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(dir, temporary, 0)
		}
	}()
	if err := o.fill(os.NewFile(uintptr(fd), path), data); err != nil {
		return err
	}
	if err := move(temporary, name); err != nil {
		return &fs.PathError{Op: "replace", Path: path, Err: err}
	}
	if !o.Sync {
		return nil
	}
	if err := unix.Fsync(dir); err != nil { // the file is there, but may not survive a crash of the machine
		return &fs.PathError{Op: "sync directory of", Path: path, Err: err}
	}
	return nil
}

// fill writes the file and closes it. It sets the owner before the mode, because a chown may clear bits of the mode.
func (o Options) fill(f *os.File, data []byte) error {
	_, err := f.Write(data)
	if own := o.Owner; err == nil && own != nil && (own.UID != os.Geteuid() || own.GID != os.Getegid()) {
		err = f.Chown(own.UID, own.GID)
	}
	if err == nil {
		err = f.Chmod(o.Mode)
	}
	if err == nil && o.Sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

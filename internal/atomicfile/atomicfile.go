// Package atomicfile puts files in their place in one step: a reader sees the file that was there before, or the new one, whole. It works in
// an open directory, so that nobody can put another one in its place meanwhile, and follows no link. It does not lock: of two who replace one
// file at a time the last wins.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// Owner is a user and a group. A group of -1 stays as it is.
type Owner struct{ UID, GID int }

// Options say what the file is to be like.
type Options struct {
	Mode fs.FileMode

	// Owner is whose the file is; nil: this process's user and group.
	Owner *Owner

	// Sync makes it last: after a crash of the machine the file is there whole.
	Sync bool

	// Temporary is the name beside it under which the file is written; empty: one that nobody can guess. With a name, what a crash left there goes
	// with the next call, so it must be one that only this process's user can make.
	Temporary string
}

// Replace writes the file at path, whose directory dir has open. What was in its place, be it a link, is gone. Errors: *fs.PathError; then what was
// there is there still.
func Replace(dir int, path string, data []byte, o Options) error {
	return place(dir, path, data, o, func(from, to string) error { return unix.Renameat(dir, from, dir, to) })
}

// Create writes as Replace does a file that must not be there yet: the error then wraps fs.ErrExist, also when two try at once.
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
var leftover = regexp.MustCompile(`^\.(?:(.+)\.)?[A-Z2-7]{26}$`)

// RemoveLeftovers removes from a directory what killed writers of the file with that name have left there; with an
// empty name, what killed writers of any file have left. No such writer may be at work.
func RemoveLeftovers(dir *os.File, name string) {
	for {
		entries, err := dir.Readdirnames(1024) // a task may have put millions of files there
		for _, entry := range entries {
			if match := leftover.FindStringSubmatch(entry); match != nil && (name == "" || match[1] == name) {
				_ = unix.Unlinkat(int(dir.Fd()), entry, 0)
			}
		}
		if err != nil { // the end; what can't be read can't be tidied up
			return
		}
	}
}

func place(dir int, path string, data []byte, o Options, move func(from, to string) error) (err error) {
	name, temporary, random := filepath.Base(path), o.Temporary, rand.Text()
	switch {
	case temporary != "":
		_ = unix.Unlinkat(dir, temporary, 0) // what can't go shows next
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
			_ = unix.Unlinkat(dir, temporary, 0) // it holds room, and is of no use
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
	if err := unix.Fsync(dir); err != nil { // it is there, and whether it survives a crash of the machine is unknown
		return &fs.PathError{Op: "sync directory of", Path: path, Err: err}
	}
	return nil
}

// fill writes the file and closes it. The owner comes before the mode, of which a chown may clear bits.
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

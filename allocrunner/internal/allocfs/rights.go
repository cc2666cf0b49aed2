package allocfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
)

// withRights calls do with the reader's rights on files, if they differ from this process's. The kernel checks the file
// system user and group of the thread, which loses root's capabilities to ignore modes (setfsuid(2)). The thread ends
// with the call, so that no other code of this process ever runs on it with wrong rights. Steps that do passes to own
// run with this process's rights.
func (f files) withRights(do func(own func(func())) error) error {
	if f.reader == nil || os.Geteuid() != 0 || f.reader.UID == 0 {
		return do(func(step func()) { step() })
	}
	steps, stepped, result := make(chan func()), make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		err := becomeReader(*f.reader, f.groups)
		if err == nil {
			err = do(func(step func()) { steps <- step; <-stepped })
		}
		result <- err
	}()
	for {
		select {
		case step := <-steps:
			step()
			stepped <- struct{}{}
		case err := <-result:
			return err
		}
	}
}

// ReadFile returns the content of a regular file of at most as many bytes below a directory, with the rights of a user.
// Links are followed as long as they stay below the directory. Errors: those of the system, ErrTooLarge.
func ReadFile(dir, path string, most int64, reader interfaces.Reader) (content []byte, err error) {
	root, err := os.OpenRoot(dir) // the way to it may be closed to the user
	if err != nil {
		return nil, err
	}
	defer root.Close()
	err = files{reader: &reader}.withRights(func(func(func())) error {
		f, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not block
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		switch {
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is no regular file", path)
		}
		content, err = io.ReadAll(io.LimitReader(f, most+1))
		if err == nil && int64(len(content)) > most {
			return fmt.Errorf("%s: %w", path, ErrTooLarge)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return content, nil
}

// Access returns the error that a user gets who enters the directory at an absolute path or, with write, changes its
// entries. It names the first directory on the way that is closed to the user, whose groups count.
func Access(path string, user interfaces.User, write bool) error {
	reader := &interfaces.Reader{UID: user.UID, GID: user.GID}
	return files{reader: reader, groups: user.Groups}.withRights(func(func(func())) error {
		at := "/"
		for name := range strings.SplitSeq(path, "/") {
			at = filepath.Join(at, name)
			if err := unix.Faccessat(unix.AT_FDCWD, at, unix.X_OK, unix.AT_EACCESS); err != nil {
				return &os.PathError{Op: "enter", Path: at, Err: err}
			}
		}
		if write {
			if err := unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK, unix.AT_EACCESS); err != nil {
				return &os.PathError{Op: "write to", Path: at, Err: err}
			}
		}
		return nil
	})
}

// ErrTooLarge: a file is longer than a reader wants.
var ErrTooLarge = errors.New("the file is too large")

// becomeReader makes the reader, with these groups alone, the file system user of the thread. Other threads don't
// change.
func becomeReader(r interfaces.Reader, groups []uint32) error {
	list := make([]int, len(groups))
	for i, g := range groups {
		list[i] = int(g)
	}
	if err := unix.Setgroups(list); err != nil { // of this thread alone, unlike syscall's
		return fmt.Errorf("leave the groups of %d: %w", os.Geteuid(), err)
	}
	for _, set := range []struct {
		id   int
		call func(int) (int, error)
	}{{int(r.GID), unix.SetfsgidRetGid}, {int(r.UID), unix.SetfsuidRetUid}} {
		_, _ = set.call(set.id) // it fails without an error
		if now, err := set.call(-1); err != nil || now != set.id {
			return fmt.Errorf("read files as user %d, group %d: the system does not allow it", r.UID, r.GID)
		}
	}
	return nil
}

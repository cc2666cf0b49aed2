package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// lockTimeout bounds the wait for a file's lock, which somebody who only reads has for a moment. bbolt would wait for ever.
const lockTimeout = 500 * time.Millisecond

// lockPause is the pause between two looks at the lock.
const lockPause = 10 * time.Millisecond

// lock opens the file at path with a lock that others respect: of all processes one has it exclusively, or any number share it. What it
// gives is the file that path names: one that was replaced in the meantime is let go. Errors: ErrInUse, ErrNotFound, ErrFile.
func lock(path string, flag, how int) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, 0o600) // a FIFO, or what else it may be, is not waited for
		if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE == 0 {
			return nil, fmt.Errorf("%s: %w", path, ErrNotFound)
		}
		if err != nil {
			return nil, fileError(path, err)
		}
		if err := flock(file, how, lockTimeout); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
		}
		is, err := file.Stat()
		if err == nil {
			err = checkFile(is)
		}
		if err != nil {
			return nil, errors.Join(fileError(path, err), file.Close())
		}
		if named, err := os.Stat(path); err == nil && os.SameFile(is, named) {
			return file, nil
		}
		if err := file.Close(); err != nil {
			return nil, fileError(path, err)
		}
	}
}

// checkFile refuses what nobody but this user can have made.
func checkFile(is fs.FileInfo) error {
	if !is.Mode().IsRegular() {
		return errors.New("it is not a file")
	}
	owner, self := int(is.Sys().(*syscall.Stat_t).Uid), os.Geteuid()
	if self == 0 && owner != 0 || is.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("it has mode %04o and belongs to uid %d, so others can have written it: if you trust it, run 'chown %d' and 'chmod 0600' on it",
			is.Mode().Perm(), owner, self)
	}
	return nil
}

func flock(file *os.File, how int, timeout time.Duration) error {
	for since := time.Now(); ; time.Sleep(lockPause) {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%w: lock it: %w", ErrFile, err)
		}
		if time.Since(since) >= timeout {
			return fmt.Errorf("%w; is taskapi already running this allocation?", ErrInUse)
		}
	}
}

// lockForWriting gives the file at path, locked, and makes it when there is none. A new one appears as a whole: a crash or a full disk
// leaves none, or an empty one, which counts as none.
func lockForWriting(path, version string) (*os.File, error) {
	for {
		file, err := lock(path, os.O_RDWR|os.O_CREATE, unix.LOCK_EX)
		if err != nil {
			return nil, err
		}
		info, err := file.Stat()
		if err == nil && info.Size() > 0 {
			return file, nil
		}
		if err == nil {
			err = replace(path, version, nil) // under the lock of the empty one
		}
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fileError(path, err)
		}
	}
}

// newSuffix is of the name that a file has until it is complete.
const newSuffix = ".new"

// replace puts a new file in the place of that at path, which the caller has locked.
func replace(path, version string, set values) error {
	draft := path + newSuffix
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) { // a crash has left it
		return err
	}
	err := guarded(func() error { return writeDraft(draft, version, set) })
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		os.Remove(draft)
		return err
	}
	return syncDir(filepath.Dir(path))
}

func writeDraft(draft, version string, set values) error {
	handle, err := bolt.Open(draft, 0o600, &bolt.Options{Timeout: lockTimeout})
	if err != nil {
		return err
	}
	return errors.Join(handle.Update(func(tx *bolt.Tx) error {
		if _, err := writeMeta(tx, version); err != nil {
			return err
		}
		_, err := writeValues(tx, set)
		return err
	}), handle.Close())
}

// syncDir makes the names in a directory outlive the machine.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// readAll reads a file from its beginning, wherever its offset is. What can't be read is left as zeros, and noted.
func readAll(file io.ReaderAt, size int64) (data []byte, problems []error) {
	const step = 4096 // a block of most disks
	data = make([]byte, size)
	if n, err := file.ReadAt(data, 0); err == nil {
		return data, nil
	} else if errors.Is(err, io.EOF) {
		return data[:n], nil // it has become shorter
	}
	for at := int64(0); at < size; at += step {
		block := data[at:min(at+step, size)]
		if _, err := file.ReadAt(block, at); err != nil {
			clear(block)
			problems = append(problems, fmt.Errorf("%d bytes at %d: %w", len(block), at, err))
		}
	}
	return data, problems
}

// load reads and parses an open file. Errors: ErrNewer, ErrOlder, ErrFile.
func load(file *os.File, path string) (*contents, []byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, nil, fileError(path, err)
	}
	data, problems := readAll(file, info.Size())
	c, err := parse(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	c.problems = append(problems, c.problems...)
	return c, data, nil
}

// check is the error for a file that is not whole.
func (c *contents) check(path string) error {
	if len(c.problems) == 0 {
		return nil
	}
	const most = 3 // one damaged page makes many problems
	err := errors.Join(c.problems[:min(most, len(c.problems))]...)
	return damagedError(path, strings.ReplaceAll(err.Error(), "\n", "; "))
}

func damagedError(path string, what any) error {
	return fmt.Errorf("%s: %w: %v", path, ErrDamaged, what)
}

// errPanic marks what was recovered from.
var errPanic = errors.New("bbolt gave up")

// guarded runs what works on the mapped file. bbolt panics on what it does not expect, and a file that is cut short under it faults: either
// is an error here. What was worked on is of no use then.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return f()
}

// remedies are what an operator can do about a file that can't be used.
var remedies = []struct {
	cause  error
	remedy string
}{
	{syscall.ENOSPC, "make room on its file system"},
	{syscall.EDQUOT, "make room, or raise the quota"},
	{syscall.EFBIG, "raise the limit on the size of files (ulimit -f)"},
	{syscall.EROFS, "mount its file system for writing"},
	{syscall.EIO, "its disk fails: the kernel's log says more"},
	{syscall.EACCES, "it belongs to another user: run taskapi as that one"},
	{syscall.EPERM, "it belongs to another user, or is immutable"},
	{syscall.EMFILE, "raise the limit on open files (ulimit -n)"},
}

// fileError classes what the file system says.
func fileError(path string, err error) error {
	remedy := ""
	for _, r := range remedies {
		// bbolt does not wrap all that it passes on.
		if errors.Is(err, r.cause) || strings.Contains(err.Error(), r.cause.Error()) {
			remedy = "; " + r.remedy
			break
		}
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w: %w%s", path, ErrFile, err, remedy)
}

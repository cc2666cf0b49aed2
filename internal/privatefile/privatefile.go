// Package privatefile keeps small secrets, and other data that is trusted, in files that belong to this user alone. It
// reads only regular files that the effective user owns and nobody else can reach, and follows no symbolic link in the
// last place of a path. After a crash, a file that it wrote is there whole or not at all. Holders of one lock exclude
// one another, in one process or several.
//
// It does not protect from the superuser, nor from a process of the same user.
package privatefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/atomicfile"
	"taskapi/internal/flock"
)

var (
	// ErrExposed means that others can reach the file or directory, or that another user owns it.
	ErrExposed = errors.New("not private")
	// ErrNotRegular means that the path has something other than a regular file, or a file over the given size.
	ErrNotRegular = errors.New("not a regular file of the expected size")
	// ErrBusy means that another process held the lock for too long.
	ErrBusy = errors.New("locked by another process")
)

// EnsureDir makes the directory, with mode 0700, if it is missing, and checks that it is private.
func EnsureDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s: %w", dir, syscall.ENOTDIR)
	}
	return checkPrivate(dir, info, "0700")
}

// checkPrivate checks mode and owner. want is the mode that an operator should set.
func checkPrivate(path string, info fs.FileInfo, want string) error {
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s is %w: its mode %04o lets others in; run chmod %s %s", path, ErrExposed, mode, want, path)
	}
	return checkOwner(path, info.Sys().(*syscall.Stat_t).Uid, os.Geteuid())
}

func checkOwner(path string, owner uint32, self int) error {
	if int64(owner) == int64(self) {
		return nil
	}
	remedy := "run this as that user"
	if self == 0 {
		remedy = fmt.Sprintf("run chown 0 %s if you trust it", path)
	}
	return fmt.Errorf("%s is %w: it belongs to uid %d, and this process runs as uid %d; %s", path, ErrExposed, owner, self,
		remedy)
}

// Version identifies one state of a file without reading it: every Write makes a new inode.
type Version struct {
	device, inode uint64
	size          int64
	changed       syscall.Timespec
}

// Stat returns the version of the file at path.
func Stat(path string) (Version, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return Version{}, err
	}
	return versionOf(info), nil
}

// Open opens a private file, and makes it if flag has os.O_CREATE. Errors wrap ErrExposed, ErrNotRegular or
// fs.ErrNotExist.
func Open(path string, flag int) (_ *os.File, err error) {
	// O_NONBLOCK keeps a fifo in the file's place from blocking.
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%s is a symbolic link: %w", path, ErrNotRegular)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO): // a directory, and a fifo that nobody reads
		return nil, fmt.Errorf("%s: %w", path, ErrNotRegular)
	case err != nil:
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, ErrNotRegular)
	}
	if err == nil {
		err = checkPrivate(path, info, "0600")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Read returns the content of a private file of at most limit bytes. Errors wrap ErrExposed, ErrNotRegular or
// fs.ErrNotExist.
func Read(path string, limit int64) ([]byte, Version, error) {
	f, err := Open(path, os.O_RDONLY)
	if err != nil {
		return nil, Version{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, Version{}, err
	}
	if info.Size() > limit {
		return nil, Version{}, fmt.Errorf("%s: %w", path, ErrNotRegular)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	return data, versionOf(info), err
}

// Log is a file, opened for appending, that is emptied when it has grown past Max. Each Write is whole lines. Another
// writer than a file is only written to.
type Log struct {
	io.Writer
	Max int64
}

// Write writes lines. A log that can't be emptied grows.
func (l Log) Write(lines []byte) (int, error) {
	if f, ok := l.Writer.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > l.Max {
			_ = f.Truncate(0)
		}
	}
	return l.Writer.Write(lines)
}

// Write replaces the file at path, with mode 0600, and removes what killed writers of it have left. The caller holds
// the lock that guards path.
func Write(path string, data []byte) error { return replace(path, data, true) }

// WriteVolatile is Write for a file that a crash of the machine may empty or remove.
func WriteVolatile(path string, data []byte) error { return replace(path, data, false) }

func replace(path string, data []byte, sync bool) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	atomicfile.RemoveLeftovers(dir, filepath.Base(path))
	return atomicfile.Replace(int(dir.Fd()), path, data, atomicfile.Options{Mode: 0o600, Sync: sync})
}

// Create writes a new file, as Write does. If the file exists, or another process makes it at the same time, the error
// wraps fs.ErrExist.
func Create(path string, data []byte) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return atomicfile.Create(int(dir.Fd()), path, data, atomicfile.Options{Mode: 0o600, Sync: true})
}

// lockTimeout is how long Acquire waits. A lock is held for a few file operations: milliseconds, unless a disk hangs.
const lockTimeout = 5 * time.Second

// Lock is an exclusive flock(2) on a file, which may also hold a mark that outlives it.
type Lock struct{ f *os.File }

// Acquire takes the lock, and makes the file if it is missing. The error wraps ErrBusy if another process holds the
// lock for 5 seconds.
func Acquire(path string) (*Lock, error) { return acquire(path, lockTimeout) }

func acquire(path string, timeout time.Duration) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = flock.Lock(int(f.Fd()), unix.LOCK_EX, timeout)
	if errors.Is(err, flock.ErrLocked) {
		err = fmt.Errorf("waited %v: %w", timeout, ErrBusy)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return &Lock{f}, nil
}

// Marked reports whether Mark was ever called on the lock's file.
func (l *Lock) Marked() (bool, error) {
	info, err := l.f.Stat()
	return err == nil && info.Size() > 0, err
}

// Mark leaves a mark in the lock's file, for good.
func (l *Lock) Mark() error {
	_, err := l.f.WriteAt([]byte("in use\n"), 0)
	return errors.Join(err, l.f.Sync())
}

// Release releases the lock.
func (l *Lock) Release() error { return l.f.Close() }

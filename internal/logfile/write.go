package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	// ErrShort: a file has less than was written to it.
	ErrShort = errors.New("it is cut short")
	// ErrUncertain: a batch could not be written, and what is there of it could not be removed. It may count after a crash.
	ErrUncertain = errors.New("what was written can't be removed")
)

// Append writes a batch at the end of a file, syncs it, and then writes the header, which notes it. The header is not synced: after a crash of the
// machine it may be older than the batches. When Append fails, the file is as it was before, with that header, unless the error is ErrUncertain.
// Errors: ErrShort, ErrUncertain, the file's.
func Append(f *os.File, end int64, batch, header, before []byte) error {
	if err := cutOff(f, end); err != nil {
		return err
	}
	_, err := f.WriteAt(batch, end)
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	noted := err == nil
	if err == nil {
		_, err = f.WriteAt(header, 0)
	}
	if err == nil {
		return nil
	}
	left := f.Truncate(end)
	if left == nil && noted { // what is there may be half of another header
		_, left = f.WriteAt(before, 0)
	}
	if left == nil { // else a whole batch would count after a crash of the machine
		left = unix.Fdatasync(int(f.Fd()))
	}
	if left != nil {
		err = fmt.Errorf("%w: %w: %w", err, ErrUncertain, left)
	}
	return err
}

// cutOff removes, for good, what a crash has left behind the end: what is written in its place next must not mix with it.
func cutOff(f *os.File, end int64) error {
	info, err := f.Stat()
	switch {
	case err != nil || info.Size() == end:
		return err
	case info.Size() < end:
		return fmt.Errorf("%w: it has %d bytes of %d", ErrShort, info.Size(), end)
	}
	if err := f.Truncate(end); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.Fd()))
}

// Settle has a file end where its last whole batch does, after a crash, with a header that says so: all of it is on the disk then.
func Settle(f *os.File, end int64, header []byte) error {
	err := cutOff(f, end)
	if err == nil {
		_, err = f.WriteAt(header, 0)
	}
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	return err
}

// draftSuffix is of the name that a file has until it is complete.
const draftSuffix = ".new"

// Draft makes a file beside the one at path, has it written and syncs it. What a crash has left of another draft is removed first.
func Draft(path string, write func(*os.File) error) (_ *os.File, err error) {
	draft := path + draftSuffix
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(draft, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(draft))
	}
	return f, nil
}

// Replace puts a file that write writes in the place of the one at path. After an error that one is there still. The new name is on the
// disk once SyncName has returned: until then a crash of the machine may bring back the old file, and nothing must be appended to the new one.
func Replace(path string, write func(*os.File) error) (*os.File, error) {
	f, err := Draft(path, write)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// SyncName makes the name of a file outlive the machine.
func SyncName(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Rewriting says when a file is rewritten: when it is twice as long as what is valid in it, and has at least a number of bytes, the floor.
type Rewriting struct{ retry int64 }

// If rewrites a file that has grown. When that fails, the file is as good as before: it is tried again when the file has grown by the floor.
func (r *Rewriting) If(size, valid, floor int64, rewrite func() error) {
	if size < max(floor, 2*valid, r.retry) {
		return
	}
	r.retry = 0
	if rewrite() != nil {
		r.retry = size + floor
	}
}

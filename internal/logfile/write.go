package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	// ErrShort: a file is shorter than it was.
	ErrShort = errors.New("it is cut short")
	// ErrUncertain: writing a batch failed, and so did removing what was written of it. The batch may count.
	ErrUncertain = errors.New("what was written can't be removed")
)

// Append writes a batch at the end of a file, syncs it, and then writes the header, which notes the new end. The header
// is not synced: after a crash of the machine it may be older than the batches. When Append fails, the file is as it
// was, with the header before, unless the error is ErrUncertain: then the file is whole, with the batch or without it.
// Errors: ErrShort, ErrUncertain, the file's.
func Append(f *os.File, end int64, batch, header, before []byte) error {
	info, err := f.Stat()
	if err == nil && info.Size() != end { // old bytes must not mix with the next record
		err = Settle(f, end, before)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(batch, end)
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	if err == nil {
		_, err = f.WriteAt(header, 0)
	}
	if err == nil {
		return nil
	}
	if left := Settle(f, end, before); left != nil { // a whole batch would count after a crash of the machine
		err = fmt.Errorf("%w: %w: %w", err, ErrUncertain, left)
	}
	return err
}

// Settle writes a header that notes an end of a file, unless it is there, and cuts off what follows this end. Both are
// on the disk when Settle returns nil. A header that can't be written leaves the file as it is, since a header must
// never note more than there is. Errors: ErrShort, the file's.
func Settle(f *os.File, end int64, header []byte) error {
	info, err := f.Stat()
	if err == nil && info.Size() < end {
		err = fmt.Errorf("%w: it has %d bytes of %d", ErrShort, info.Size(), end)
	}
	now := make([]byte, len(header))
	if err == nil {
		_, err = f.ReadAt(now, 0)
	}
	if err == nil && !bytes.Equal(now, header) {
		if _, err = f.WriteAt(header, 0); err == nil {
			err = unix.Fdatasync(int(f.Fd())) // before the cut
		}
	}
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	return err
}

// draftSuffix ends the name of a file that is not complete yet.
const draftSuffix = ".new"

// Draft makes a file beside the one at path, calls write to fill it, and syncs it. It first removes a draft that a
// crash has left.
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

// Replace makes a draft with write, and puts it in the place of the file at path. After an error the old file is still
// there. Call SyncName before anything is appended to the new file: until then a crash of the machine may bring back
// the old one.
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

// SyncName syncs the directory of a file, so that the file's name survives a crash of the machine.
func SyncName(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Rewriting decides when a file is rewritten: when it is twice as long as what is valid in it, and at least as long as
// a floor.
type Rewriting struct{ retry int64 }

// If calls rewrite for a file that has grown. A file that could not be rewritten is as good as before: it is tried
// again when it has grown by the floor.
func (r *Rewriting) If(size, valid, floor int64, rewrite func() error) {
	if size < max(floor, 2*valid, r.retry) {
		return
	}
	r.retry = 0
	if rewrite() != nil {
		r.retry = size + floor
	}
}

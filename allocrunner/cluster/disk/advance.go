package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/logfile"
	"taskapi/internal/privatefile"
)

// prepare takes the lock and makes the log, or mends one that has a header of an earlier start of the machine.
func (s *Store) prepare(ctx context.Context) error {
	release, err := s.acquire(ctx, lockTimeout)
	if err != nil {
		return err
	}
	defer release()
	if s.log != nil {
		s.log.Close() // another process may have replaced it in the meantime
	}
	s.log, s.head, err = s.openLog()
	if errors.Is(err, fs.ErrNotExist) {
		if info, err := s.lock.Stat(); err != nil || info.Size() > 0 {
			return s.damaged(errGone)
		}
		if err := s.rewrite(nil, 1); err != nil {
			return unavailable(s.logPath(), err)
		}
		s.log, s.head, err = s.openLog()
	}
	if err == nil {
		err = s.recover()
	}
	return err
}

// openLog opens the log and reads its header. Errors: fs.ErrNotExist among them.
func (s *Store) openLog() (*os.File, header, error) {
	f, err := privatefile.Open(s.logPath(), os.O_RDWR)
	if err != nil {
		return nil, header{}, unavailable(s.logPath(), err)
	}
	h, err := readHeader(f)
	if err != nil {
		f.Close()
		return nil, header{}, s.damaged(err)
	}
	return f, h, nil
}

// begin reads the open log.
func (s *Store) begin() (err error) {
	if s.table, s.head, err = s.first(s.log, s.head); err != nil {
		return err
	}
	if s.head.base > 1 { // changes before the first batch are not known
		s.table.Forget(s.head.base)
	}
	return s.advanceLocked()
}

// first returns the entries of a log's first batch, and the header that the log began with.
func (s *Store) first(f *os.File, h header) (*table.Table[logfile.Span], header, error) {
	t, end := table.New[logfile.Span](), h
	scan := logfile.Scan(f, logfile.HeaderSize, h.end)
	var read changes
	index, err := read.batch(scan)
	if err == nil && index != h.base {
		err = fmt.Errorf("it began with change %d, and should with %d", index, h.base)
	}
	if err != nil {
		return nil, h, s.damaged(err)
	}
	t.Load(index, read.all)
	end.end, end.index = scan.At, index
	return t, end, nil
}

// maxRead bounds how many changes are read before the table gets them.
const maxRead = 16 << 10

// applyLocked adds the log's batches to the table, up to the end that the header notes.
func (s *Store) applyLocked(h header) error {
	scan := logfile.Scan(s.log, s.head.end, h.end)
	for ended := false; !ended; {
		var read changes
		last := s.table.Index
		for len(read.all) < maxRead {
			index, err := read.batch(scan)
			if ended = errors.Is(err, io.EOF); ended {
				break
			}
			if err == nil && index != last+1 {
				err = fmt.Errorf("change %d follows change %d", index, last)
			}
			if err != nil {
				return s.damaged(err)
			}
			last = index
		}
		s.table.Load(last, read.all)
	}
	if s.table.Index != h.index || scan.At != h.end {
		return s.damaged(fmt.Errorf("its last change is %d and ends at byte %d, and should be %d and end at %d",
			s.table.Index, scan.At, h.index, h.end))
	}
	s.head = h
	return nil
}

// current reports whether the table is up to date with the log.
func (s *Store) current() (bool, error) {
	if ok, err := s.isNamed(); !ok {
		return false, err
	}
	h, err := readHeader(s.log)
	if err != nil {
		return false, s.damaged(err)
	}
	return h == s.head, nil
}

// isNamed reports whether the open log still has its name: it has not been replaced.
func (s *Store) isNamed() (bool, error) {
	if s.closed {
		return false, errClosed
	}
	var is, named unix.Stat_t
	if err := unix.Fstat(int(s.log.Fd()), &is); err != nil {
		return false, unavailable(s.logPath(), err)
	}
	if is.Size < s.head.end {
		return false, s.damaged(fmt.Errorf("it is cut short: it has %d bytes of %d", is.Size, s.head.end))
	}
	err := unix.Lstat(s.logPath(), &named)
	return err == nil && is.Ino == named.Ino && is.Dev == named.Dev, nil
}

// advanceLocked brings the table up to date with the log.
func (s *Store) advanceLocked() error {
	for {
		named, err := s.isNamed()
		if err != nil {
			return err
		}
		// A log that was replaced is not written any more. It is read to its end first, so that nobody misses a change.
		h, err := readHeader(s.log)
		if err != nil {
			return s.damaged(err)
		}
		if h.boot != s.boot { // somebody has put a backup there
			return s.damaged(errors.New("it was replaced by an older one"))
		}
		if h != s.head {
			if err := s.applyLocked(h); err != nil {
				return err
			}
		}
		if named {
			return nil
		}
		if err := s.replacedLocked(); err != nil {
			return err
		}
	}
}

// replacedLocked goes on with the log that has taken the place of the open one.
func (s *Store) replacedLocked() error {
	f, h, err := s.openLog()
	if errors.Is(err, fs.ErrNotExist) {
		return s.damaged(errGone)
	}
	if err != nil {
		return err
	}
	t, h, err := s.first(f, h)
	if err == nil && h.base < s.table.Index {
		err = s.damaged(fmt.Errorf("it was replaced by an older one: it began with change %d, and %d was seen before",
			h.base, s.table.Index))
	}
	if err != nil {
		f.Close()
		return err
	}
	s.table.Adopt(t, h.base > s.table.Index)
	s.log.Close()
	s.log, s.head = f, h
	return nil
}

// errGone: the log was removed.
var errGone = errors.New("it is gone")

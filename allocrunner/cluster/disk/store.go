package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/filewatch"
	"taskapi/internal/logfile"
	"taskapi/internal/privatefile"
	"taskapi/internal/safedir"
)

// ErrDamaged: a file of the store is not as taskapi has written it, or is older than it was. It comes with cluster.ErrUnavailable.
var ErrDamaged = errors.New("the store is damaged")

// store is an open directory.
type store struct {
	dir    string
	boot   bootID
	lock   *os.File      // see lock.go
	queue  queue         // used under the writer lock
	leases *os.File      // holds no lock itself
	writer chan struct{} // has an element while this process has the lock

	watcher filewatch.Watcher
	done    chan struct{} // closed by close
	ended   sync.WaitGroup

	mu     sync.RWMutex // guards the fields below
	log    *os.File
	head   header // up to which the table has the log
	table  *table.Table[logfile.Span]
	closed bool
	failed error // why nobody hears of changes; nil when all is well

	watched   *os.File          // which follow watches; its own
	rewriting logfile.Rewriting // used by who has the lock
	tooLong   struct {          // when the log was as long as it may be, and was rewritten. Who has the lock uses it
		at  time.Time
		err error
	}
}

func (s *store) path(name string) string { return filepath.Join(s.dir, name) }
func (s *store) logPath() string         { return s.path("log") }

// openStore opens the store of a directory, and makes it where there is none.
func openStore(ctx context.Context, dir string) (_ *store, err error) {
	s := &store{dir: dir, writer: make(chan struct{}, 1), done: make(chan struct{})}
	defer func() {
		if err != nil {
			s.closeFiles()
		}
	}()
	if s.boot, err = thisBoot(); err != nil {
		return nil, err
	}
	if err := checkDir(dir); err != nil {
		return nil, unavailable(dir, err)
	}
	for name, file := range map[string]**os.File{"lock": &s.lock, "queue": &s.queue.file, "leases": &s.leases} {
		if *file, err = privatefile.Open(s.path(name), os.O_RDWR|os.O_CREATE); err != nil {
			return nil, unavailable(s.path(name), err)
		}
	}
	s.log, s.head, err = s.openLog()
	if errors.Is(err, fs.ErrNotExist) || err == nil && (s.head.boot != s.boot || !s.head.named) {
		err = s.prepare(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	s.ended.Go(s.follow)
	return s, nil
}

// checkDir makes the directory. It must be private, and nobody else may replace it.
func checkDir(dir string) error {
	parent, err := safedir.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := parent.CheckSafe(os.Geteuid()); err != nil {
		return err
	}
	return privatefile.EnsureDir(dir)
}

// prepare makes the log, or has it end where it ended when the machine failed, under the lock.
func (s *store) prepare(ctx context.Context) error {
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
		err = s.create()
	}
	if err == nil {
		err = s.recover()
	}
	return err
}

// openLog opens the log and reads its header. Errors: fs.ErrNotExist among them.
func (s *store) openLog() (*os.File, header, error) {
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
func (s *store) begin() (err error) {
	if s.table, s.head, err = s.first(s.log, s.head); err != nil {
		return err
	}
	if s.head.base > 1 { // nobody knows what has been deleted before
		s.table.Forget(s.head.base)
	}
	return s.advanceLocked()
}

// first returns the entries that a log began with, and the header as it was then.
func (s *store) first(f *os.File, h header) (*table.Table[logfile.Span], header, error) {
	t, end := table.New[logfile.Span](), h
	scan := logfile.Scan(f, logfile.HeaderSize, h.end)
	index, writes, spans, err := batch(scan)
	if err == nil && index != h.base {
		err = fmt.Errorf("it began with change %d, and should with %d", index, h.base)
	}
	if err != nil {
		return nil, h, s.damaged(err)
	}
	t.Apply(index, writes, func(i int) logfile.Span { return spans[i] })
	end.end, end.index = scan.At, index
	return t, end, nil
}

// applyLocked adds to the table what the log has up to the end that its header says.
func (s *store) applyLocked(h header) error {
	scan := logfile.Scan(s.log, s.head.end, h.end)
	for {
		index, writes, spans, err := batch(scan)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && index != s.table.Index+1 {
			err = fmt.Errorf("change %d follows change %d", index, s.table.Index)
		}
		if err != nil {
			return s.damaged(err)
		}
		s.table.Apply(index, writes, func(i int) logfile.Span { return spans[i] })
	}
	if s.table.Index != h.index || scan.At != h.end {
		return s.damaged(fmt.Errorf("its last change is %d and ends at byte %d, and should be %d and end at %d", s.table.Index, scan.At, h.index, h.end))
	}
	s.head = h
	return nil
}

// current reports whether the table has all that the log has.
func (s *store) current() (bool, error) {
	if ok, err := s.isNamed(); !ok {
		return false, err
	}
	h, err := readHeader(s.log)
	if err != nil {
		return false, s.damaged(err)
	}
	return h == s.head, nil
}

// isNamed reports whether the open log is the one that has its name, and not one that was replaced.
func (s *store) isNamed() (bool, error) {
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

// advanceLocked brings the table to where the log is.
func (s *store) advanceLocked() error {
	for {
		named, err := s.isNamed()
		if err != nil {
			return err
		}
		// What was replaced is not written any more, and read to its end first: so nobody misses a change.
		h, err := readHeader(s.log)
		if err != nil {
			return s.damaged(err)
		}
		if h.boot != s.boot { // it was put there by something else than taskapi
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

// replacedLocked goes on with the log that is in the place of the one before.
func (s *store) replacedLocked() error {
	f, h, err := s.openLog()
	if errors.Is(err, fs.ErrNotExist) {
		return s.damaged(errGone)
	}
	if err != nil {
		return err
	}
	t, h, err := s.first(f, h)
	if err == nil && h.base < s.table.Index {
		err = s.damaged(fmt.Errorf("it was replaced by an older one: it began with change %d, and %d was seen before", h.base, s.table.Index))
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

var errGone = errors.New("it is gone")

// damaged is the error for a log that can't be used.
func (s *store) damaged(err error) error {
	return fmt.Errorf("%w: %w: %s: %w; stop all taskapi processes of this data directory, and put a backup of %s in its place, or remove it to begin "+
		"with an empty one", cluster.ErrUnavailable, ErrDamaged, s.logPath(), err, s.dir)
}

// unavailable is the error for a file that can't be used, with the cause.
func unavailable(path string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	if strings.Contains(err.Error(), path) {
		return fmt.Errorf("%w: %w%s", cluster.ErrUnavailable, err, logfile.Remedy(err))
	}
	return fmt.Errorf("%w: %s: %w%s", cluster.ErrUnavailable, path, err, logfile.Remedy(err))
}

func (s *store) close() error {
	close(s.done)
	s.ended.Wait()
	s.writer <- struct{}{} // a Commit is under way no longer, and none begins
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.closeFiles()
	return nil
}

var errClosed = fmt.Errorf("%w: it is closed", cluster.ErrUnavailable)

// closeFiles closes what was read, and what was synced before.
func (s *store) closeFiles() {
	for _, f := range []*os.File{s.lock, s.queue.file, s.leases, s.log} {
		if f != nil {
			f.Close()
		}
	}
}

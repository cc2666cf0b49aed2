package allocfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/logs"
)

// logPath is the directory of the logs in the file names of frames.
const logPath = allocdir.SharedName + "/" + allocdir.LogName + "/"

// maxAhead is how many files after the present one are held open, so that they can be read after they are removed: as
// many as a task keeps by default, so that a reader may be twice as far behind. Files that are removed and open still
// take space.
const maxAhead = 10

// logFrames reads a task's output over its log files, from the oldest to the newest. The present file and, when the
// output is followed, the next files stay open, so that they can be read after they are removed. Files that were
// removed before they were seen are lost, and a frame says so.
type logFrames struct {
	frame
	stream  string // TASK.stdout
	dir     *os.File
	follow  bool
	last    int  // the last file, unless the output is followed
	index   int  // of the file; -1 before the first
	final   bool // there is a newer file, so nothing is written to this one any more
	listed  bool // the directory has not changed since the last list, which had no newer file
	ahead   []openLog
	newline bool // the output so far ends with a newline, or is empty
	waiting waiting
	tree    *Tree
	over    bool
}

// Logs reads with this program's rights: everyone who may read the task's logs may read its log files.
func (f files) Logs(task, kind string, span interfaces.Span) (interfaces.Frames, error) {
	s := &logFrames{
		frame: newFrame(span), stream: task + "." + kind, follow: span.Follow, index: -1, newline: true, tree: f.Tree,
	}
	fail := func(err error) (interfaces.Frames, error) {
		return nil, errors.Join(&interfaces.FileError{Path: logPath + s.stream, Err: innermost(err)}, s.Close())
	}
	err := files{Tree: f.Tree}.at(logPath, func(e *entry) (err error) {
		s.dir, err = e.openDir()
		return err
	})
	if err != nil {
		return nil, err
	}
	found, err := s.list()
	if err != nil {
		return fail(err)
	}
	if len(found) == 0 {
		if span.Follow && span.Await {
			return s, nil
		}
		return fail(interfaces.ErrNoLogs)
	}
	s.last = found[len(found)-1].index
	at, offset := begin(found, span)
	if index, ok := logs.Index(s.stream, path.Base(span.File)); ok {
		at, offset = beginIn(found, index, span.Offset)
	}
	for ; at < len(found); at, offset = at+1, 0 { // skips files that have been removed meanwhile
		if err = s.open(found[at].index, offset); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if errors.Is(err, unix.ENOENT) { // the writer is faster: begin with the oldest file that is left
		_ = s.Close() // only the directory is open
		return f.Logs(task, kind, interfaces.Span{Follow: span.Follow, Await: span.Await, Large: span.Large})
	}
	if err != nil {
		return fail(err)
	}
	if s.follow {
		s.waiting.watch(&s.waiting.dir, s.tree.watch.Dir, s.dir)
	}
	return s, nil
}

// logFile is a file of a stream.
type logFile struct {
	index int
	size  int64
}

// begin returns the file and the offset in it at which a span begins. An offset beyond the output means its end or,
// from the end, its beginning. From the end without an offset, it is the beginning of the latest file: 'nomad alloc
// logs -f' asks so for what there is.
func begin(found []logFile, span interfaces.Span) (at int, offset int64) {
	offset = span.Offset
	if !span.FromEnd {
		for at < len(found)-1 && offset > found[at].size {
			offset -= found[at].size
			at++
		}
		return at, min(offset, found[at].size)
	}
	at = len(found) - 1
	if offset == 0 {
		return at, 0
	}
	for ; at > 0 && offset > found[at].size; at-- {
		offset -= found[at].size
	}
	return at, max(found[at].size-offset, 0)
}

// beginIn returns where to begin in the file with a number, or in the next file that exists.
func beginIn(found []logFile, index int, offset int64) (int, int64) {
	at := slices.IndexFunc(found, func(f logFile) bool { return f.index >= index })
	switch {
	case at < 0: // there is nothing behind it
		return len(found) - 1, found[len(found)-1].size
	case found[at].index > index:
		return at, 0
	}
	return at, min(offset, found[at].size)
}

// list returns the files of the stream, the oldest first.
func (s *logFrames) list() ([]logFile, error) {
	if _, err := s.dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var found []logFile
	for {
		names, err := s.dir.Readdirnames(512)
		for _, name := range names {
			index, ok := logs.Index(s.stream, name)
			if !ok {
				continue
			}
			var st unix.Stat_t
			if unix.Fstatat(int(s.dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && regular(&st) == nil {
				found = append(found, logFile{index, st.Size})
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(found, func(a, b logFile) int { return a.index - b.index })
	return found, nil
}

// openLog is a file that is open.
type openLog struct {
	index int
	file  *os.File
}

// lookAhead opens the next files when the directory has changed.
func (s *logFrames) lookAhead() {
	if len(s.ahead) == maxAhead {
		return
	}
	select {
	case <-s.waiting.dir.Changed():
	default:
		return
	}
	s.listed = false
	s.openAhead()
}

// openAhead opens the next files that are there.
func (s *logFrames) openAhead() {
	found, err := s.list()
	if err != nil { // the caller that needs the list reports it
		return
	}
	last := s.index
	if n := len(s.ahead); n > 0 {
		last = s.ahead[n-1].index
	}
	for _, f := range found {
		if f.index <= last || len(s.ahead) == maxAhead {
			continue
		}
		if file, err := openRegular(int(s.dir.Fd()), s.name(f.index)); err == nil {
			s.ahead = append(s.ahead, openLog{f.index, file})
		}
	}
}

// open opens a file and makes it the present one.
func (s *logFrames) open(index int, offset int64) error {
	file, err := openRegular(int(s.dir.Fd()), s.name(index))
	if err != nil {
		return err
	}
	s.use(file, index, offset)
	return nil
}

func (s *logFrames) use(file *os.File, index int, offset int64) {
	s.waiting.file.Close()
	s.waiting.file = nil
	if s.file != nil {
		_ = s.file.Close() // it was only read
	}
	s.file, s.index, s.offset, s.final = file, index, offset, false
	s.File = logPath + file.Name()
}

func (s *logFrames) Next(ctx context.Context) (*api.StreamFrame, error) {
	for !s.over {
		s.lookAhead()
		if s.file != nil {
			next, err := s.read(noLimit)
			if next != nil {
				s.newline = next.Data[len(next.Data)-1] == '\n'
				return next, nil
			}
			if !errors.Is(err, io.EOF) {
				return nil, &interfaces.FileError{Path: s.File, Err: innermost(err)}
			}
		}
		if !s.follow && s.index >= s.last {
			break
		}
		if s.final || !s.follow {
			gap, err := s.advance()
			if err != nil || gap != nil {
				return gap, err
			}
			continue
		}
		if s.final = s.newer(); s.final {
			continue // read the bytes that were written before the newer file was made
		}
		if s.file != nil && s.truncated() {
			s.offset = 0
			return s.event(interfaces.FileTruncated), nil
		}
		if s.waiting.watch(&s.waiting.dir, s.tree.watch.Dir, s.dir) ||
			s.waiting.watch(&s.waiting.file, s.tree.watch.File, s.file) {
			s.listed = false
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(int(s.dir.Fd()), &st) != nil || st.Nlink == 0 {
			s.over = true
			return s.event(interfaces.FileDeleted), nil //nolint:nilerr // the log directory is gone, and with it the allocation
		}
		s.release()
		onlyFile, err := s.waiting.wait(ctx, s.waiting.dir != nil && (s.file == nil || s.waiting.file != nil))
		if err != nil {
			return nil, err
		}
		s.listed = s.listed && onlyFile
	}
	return nil, io.EOF
}

// newer reports whether there is a newer file than the present one. Mostly it has the next number, and is found without
// a list.
func (s *logFrames) newer() bool {
	var st unix.Stat_t
	if len(s.ahead) > 0 {
		return true
	}
	if s.file != nil && unix.Fstatat(int(s.dir.Fd()), s.name(s.index+1), &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		regular(&st) == nil {
		return true
	}
	if s.listed {
		return false
	}
	found, err := s.list()
	s.listed = err == nil
	return err == nil && len(found) > 0 && found[len(found)-1].index > s.index
}

func (s *logFrames) name(index int) string { return fmt.Sprintf("%s.%d", s.stream, index) }

// advance goes on to the next file. If files between the two were removed unread, it returns a frame that says so.
func (s *logFrames) advance() (gap *api.StreamFrame, err error) {
	if len(s.ahead) > 0 {
		was, next := s.index, s.ahead[0]
		s.ahead = s.ahead[1:]
		s.use(next.file, next.index, 0)
		s.openAhead()
		return s.gapSince(was), nil
	}
	for {
		found, err := s.list()
		if err != nil {
			return nil, &interfaces.FileError{Path: logPath, Err: innermost(err)}
		}
		at := slices.IndexFunc(found, func(f logFile) bool { return f.index > s.index })
		if at < 0 { // the newer file is gone, or is no log file: wait for the next
			s.final, s.over = false, !s.follow
			return nil, nil
		}
		was := s.index
		err = s.open(found[at].index, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, &interfaces.FileError{Path: logPath + s.stream, Err: innermost(err)}
		}
		if s.follow {
			s.openAhead()
		}
		return s.gapSince(was), nil
	}
}

// gapSince returns a frame that says in the output itself which files between the last one and the present one are
// missing; nil when none is.
func (s *logFrames) gapSince(was int) *api.StreamFrame {
	var st unix.Stat_t
	if was < 0 || s.index <= was+1 ||
		// The writer skips names that are taken.
		!errors.Is(unix.Fstatat(int(s.dir.Fd()), s.name(was+1), &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) {
		return nil
	}
	text := fmt.Sprintf("[taskapi: output is missing here: %s.%d to .%d were removed before they were read]\n",
		s.stream, was+1, s.index-1)
	if !s.newline {
		text = "\n" + text
	}
	s.newline = true
	return &api.StreamFrame{File: s.File, Offset: 0, Data: []byte(text), FileEvent: interfaces.FileDeleted}
}

func (s *logFrames) Close() error {
	s.waiting.close()
	s.release()
	err := s.dir.Close()
	for _, next := range s.ahead {
		err = errors.Join(err, next.file.Close())
	}
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

var _ interfaces.LogClock = files{}

// LogTimes reads with the rights of Logs.
func (f files) LogTimes(file string) interfaces.LogTimes {
	name, inLogs := strings.CutPrefix(file, logPath)
	if !inLogs || strings.Contains(name, "/") {
		return nil
	}
	var found *os.File
	err := files{Tree: f.Tree}.at(logPath, func(e *entry) error {
		dir, err := e.openDir()
		if err != nil {
			return err
		}
		defer dir.Close()
		found, err = openRegular(int(dir.Fd()), logs.TimesName(name))
		return err
	})
	if err != nil {
		return nil
	}
	return logTimes{logs.NewTimes(found), found}
}

type logTimes struct {
	*logs.Times
	file *os.File
}

func (t logTimes) Close() error { return t.file.Close() }

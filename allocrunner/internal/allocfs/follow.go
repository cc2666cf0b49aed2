package allocfs

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/filewatch"
)

const (
	// frameSize is Nomad's.
	frameSize = 64 << 10
	// largeFrame takes a reader a quarter less time than frameSize. Longer ones gain little.
	largeFrame = 256 << 10
)

// How often a file that is followed is read. Its watch reports changes, but not that a directory above it was moved
// away. If the system has no more watches, the file is read all the time.
const (
	lookEvery     = 10 * time.Second
	lookUnwatched = 100 * time.Millisecond
)

// frame is a part of every reader of frames: the open file, the offset in it, and the buffer.
type frame struct {
	api.StreamFrame
	file    *os.File
	offset  int64
	buffers *sync.Pool
	buf     *[]byte // nil while the reader waits, so that it takes no memory
}

// The buffers of readers that don't wait.
var frameBuffers, largeBuffers = buffersOf(frameSize), buffersOf(largeFrame)

func buffersOf(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		buf := make([]byte, size)
		return &buf
	}}
}

// newFrame returns the frame of a reader of the span.
func newFrame(span interfaces.Span) frame {
	if span.Large {
		return frame{buffers: largeBuffers}
	}
	return frame{buffers: frameBuffers}
}

// release gives the buffer back, which the latest frame is in.
func (f *frame) release() {
	if f.buf != nil {
		f.buffers.Put(f.buf)
		f.buf = nil
	}
}

// read reads the next piece, of most bytes at most. Errors: io.EOF.
func (f *frame) read(most int64) (*api.StreamFrame, error) {
	if f.buf == nil {
		f.buf = f.buffers.Get().(*[]byte)
	}
	buf := *f.buf
	if f.offset > noLimit-int64(len(buf)) { // the system calls such an offset invalid; no file is so long
		return nil, io.EOF
	}
	n, err := f.file.ReadAt(buf[:min(most, int64(len(buf)))], f.offset)
	if n == 0 {
		return nil, err
	}
	f.offset += int64(n)
	f.Data, f.Offset = buf[:n], f.offset
	return &f.StreamFrame, nil
}

// event returns a frame without data.
func (f *frame) event(what string) *api.StreamFrame {
	return &api.StreamFrame{File: f.File, FileEvent: what, Offset: f.offset}
}

// truncated reports whether the file is shorter than the offset.
func (f *frame) truncated() bool {
	st, err := f.file.Stat()
	return err == nil && st.Size() < f.offset
}

// waiting has the watches of one reader. The zero value has none.
type waiting struct{ file, dir *filewatch.Watch }

// watch begins a watch, unless there is one. If it reports true, the reader has to look once more before it waits.
func (w *waiting) watch(at **filewatch.Watch, add func(*os.File) (*filewatch.Watch, error), f *os.File) bool {
	if *at != nil || f == nil {
		return false
	}
	one, err := add(f)
	if err != nil { // the file is read all the time
		return false
	}
	*at = one
	return true
}

// wait returns when something may have changed, and reports whether only the file has. Errors: ctx's.
func (w *waiting) wait(ctx context.Context, watched bool) (onlyFile bool, err error) {
	every := lookEvery
	if !watched {
		every = lookUnwatched
	}
	tick := time.NewTimer(every)
	defer tick.Stop()
	select {
	case <-w.file.Changed():
		return true, nil
	case <-w.dir.Changed():
	case <-tick.C:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return false, nil
}

func (w *waiting) close() {
	w.file.Close()
	w.dir.Close()
}

// fileFrames reads one file, from an offset to its end or for ever.
type fileFrames struct {
	frame
	files   files
	path    string
	left    int64 // of the limit
	follow  bool
	waiting waiting
	over    bool
}

// noLimit is more than a file can hold.
const noLimit = 1<<63 - 1

func (f files) Open(path string, span interfaces.Span) (interfaces.Frames, error) {
	file, err := f.open(path)
	if err != nil {
		return nil, err
	}
	offset := span.Offset
	if span.FromEnd {
		st, err := file.Stat()
		if err != nil {
			return nil, errors.Join(&interfaces.FileError{Path: path, Err: innermost(err)}, file.Close())
		}
		offset = max(st.Size()-span.Offset, 0)
	}
	s := &fileFrames{frame: newFrame(span), files: f, path: path, left: noLimit, follow: span.Follow}
	s.file, s.offset, s.File = file, offset, path
	if span.Limit > 0 {
		s.left = span.Limit
	}
	return s, nil
}

func (f files) open(path string) (file *os.File, err error) {
	return file, f.at(path, func(e *entry) error {
		file, err = e.openFile()
		return err
	})
}

func (s *fileFrames) Next(ctx context.Context) (*api.StreamFrame, error) {
	for !s.over && s.left > 0 {
		next, err := s.read(s.left)
		if next != nil {
			s.left -= int64(len(next.Data))
			return next, nil
		}
		if !errors.Is(err, io.EOF) {
			return nil, &interfaces.FileError{Path: s.path, Err: innermost(err)}
		}
		if !s.follow {
			break
		}
		if s.truncated() {
			s.offset = 0
			return s.event(interfaces.FileTruncated), nil
		}
		if s.waiting.watch(&s.waiting.file, s.files.watch.File, s.file) {
			continue
		}
		if s.gone() {
			s.over = true
			return s.event(interfaces.FileDeleted), nil
		}
		s.release()
		if _, err := s.waiting.wait(ctx, s.waiting.file != nil); err != nil {
			return nil, err
		}
	}
	return nil, io.EOF
}

// gone reports whether the path now leads to another file, or to none.
func (s *fileFrames) gone() bool {
	var here unix.Stat_t
	if unix.Fstat(int(s.file.Fd()), &here) != nil || here.Nlink == 0 {
		return true
	}
	now, err := s.files.open(s.path)
	if err != nil {
		return true
	}
	defer now.Close()
	var there unix.Stat_t
	return unix.Fstat(int(now.Fd()), &there) != nil || there.Ino != here.Ino || there.Dev != here.Dev
}

func (s *fileFrames) Close() error {
	s.waiting.close()
	s.release()
	return s.file.Close()
}

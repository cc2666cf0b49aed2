package follow

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// TaskStream is a task's standard output or standard error.
type TaskStream struct{ Task, Kind string }

// StreamsOf returns the streams of the tasks, in their order.
func StreamsOf(tasks []string, kinds ...string) []TaskStream {
	var all []TaskStream
	for _, task := range tasks {
		for _, kind := range kinds {
			all = append(all, TaskStream{task, kind})
		}
	}
	return all
}

// maxLine is the longest line that is kept together. A longer one is printed in pieces.
const maxLine = 64 << 10

// LineSplitter makes lines of a stream's frames.
type LineSplitter struct {
	most    int // bytes of a line; 0 for maxLine
	partial []byte
	Print   func(line []byte) error // without the newline
}

func (s *LineSplitter) Add(data []byte) error {
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if room := cmp.Or(s.most, maxLine) - len(s.partial); len(line) > room {
			line, rest, whole = data[:room], data[room:], true
		}
		data = rest
		s.partial = append(s.partial, line...)
		if !whole {
			return nil
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (s *LineSplitter) flush() error {
	err := s.Print(s.partial)
	s.partial = s.partial[:0]
	return err
}

// End prints an unfinished line.
func (s *LineSplitter) End() error {
	if len(s.partial) == 0 {
		return nil
	}
	return s.flush()
}

// CopyFrames passes frames to a function until their end. Frames that are followed are passed until following ends,
// including everything that was written until then. CopyFrames stops at once when ctx ends.
func CopyFrames(ctx, following context.Context, frames interfaces.Frames, to func(*api.StreamFrame) error) error {
	for ctx.Err() == nil {
		frame, err := frames.Next(following)
		switch {
		case errors.Is(err, io.EOF), err != nil && following.Err() != nil:
			return nil //nolint:nilerr // the end of what is there
		case err != nil:
			return err
		}
		if err := to(frame); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// position is a place in a task's output.
type position struct {
	file   string // empty for the beginning
	offset int64
}

func (p position) Span() interfaces.Span { return interfaces.Span{File: p.file, Offset: p.offset} }

// compare orders the positions of one stream. The numbers of its files rise.
func (p position) compare(q position) int {
	if p.file == "" || q.file == "" {
		return cmp.Compare(len(p.file), len(q.file))
	}
	return cmp.Or(cmp.Compare(len(p.file), len(q.file)), cmp.Compare(p.file, q.file), cmp.Compare(p.offset, q.offset))
}

// Tail returns where the last lines of a stream begin. Errors: interfaces.ErrNoLogs.
func Tail(ctx context.Context, files interfaces.Files, s TaskStream, lines int) (begin position, err error) {
	for window := int64(64 << 10); ; window *= 16 { // bytes at the end that are searched; more if they have too few lines
		found, whole, err := lastLines(ctx, files, s, lines, window)
		if err != nil || whole {
			return found, err
		}
	}
}

// lastLines looks for the last lines in a window at the end. whole is false if they may begin before the window.
func lastLines(ctx context.Context, files interfaces.Files, s TaskStream, lines int, window int64) (begin position,
	whole bool, err error) {
	frames, err := files.Logs(s.Task, s.Kind, interfaces.Span{FromEnd: true, Offset: window})
	if err != nil {
		return position{}, false, err
	}
	defer frames.Close()
	var (
		size   int64
		starts []position // of lines, the latest last: one more than wanted
		last   position
		inLine bool
	)
	err = CopyFrames(ctx, ctx, frames, func(f *api.StreamFrame) error {
		if f.FileEvent != "" { // its text says what is missing, and is in no file
			return nil
		}
		at := f.Offset - int64(len(f.Data))
		for i, c := range f.Data {
			if !inLine {
				starts = append(starts, position{f.File, at + int64(i)})
				if len(starts) > 2*(lines+1) {
					starts = slices.Clone(starts[len(starts)-lines-1:])
				}
			}
			inLine = c != '\n'
		}
		size += int64(len(f.Data))
		last = position{f.File, f.Offset}
		return nil
	})
	if len(starts) > lines { // the first of the window may be the rest of one
		begin = last
		if lines > 0 {
			begin = starts[len(starts)-lines]
		}
		return begin, true, err
	}
	return position{}, size < window || err != nil, err
}

// LastWords reads the last lines that a task's latest process has written to standard error.
type LastWords struct {
	Files interfaces.Files
	ends  map[string]position // the output of earlier processes, by task
}

const (
	mostLastWords = 10
	lastWordsSize = 8 << 10 // bytes of them that are looked at
)

// Of returns these lines. If the process was never seen to begin, they may belong to the process before it.
func (l *LastWords) Of(task string) []string {
	ctx := context.Background() // a few pages of a file
	frames, err := l.Files.Logs(task, api.FSLogNameStderr, interfaces.Span{FromEnd: true, Offset: lastWordsSize})
	if err != nil { // without logs there are none
		return nil
	}
	defer frames.Close()
	var text []byte
	begun, end := l.ends[task], position{}
	err = CopyFrames(ctx, ctx, frames, func(f *api.StreamFrame) error {
		start := position{f.File, f.Offset - int64(len(f.Data))}
		end = position{f.File, f.Offset}
		switch {
		case begun.file == "" || start.compare(begun) >= 0:
			text = append(text, f.Data...)
		case end.compare(begun) > 0 && start.file == begun.file:
			text = append(text[:0], f.Data[begun.offset-start.offset:]...)
		}
		return nil
	})
	if err != nil {
		return nil
	}
	if l.ends == nil {
		l.ends = map[string]position{}
	}
	if end.file != "" {
		l.ends[task] = end
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if len(text) >= lastWordsSize && len(lines) > 1 {
		lines = lines[1:] // the first may be the rest of one
	}
	if len(lines) == 1 && lines[0] == "" {
		return nil
	}
	return lines[max(0, len(lines)-mostLastWords):]
}

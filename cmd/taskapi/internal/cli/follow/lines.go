package follow

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"taskapi/allocrunner/interfaces"
)

// Line is a line of a task's output.
type Line struct {
	TaskStream
	Text []byte    // with its newline, unless it has none; valid until the next line of the stream
	Time time.Time // when its beginning was read from the task; zero if that is unknown
	Rest bool      // it continues the line before, of which only a part was returned
}

// Lines reads a stream line by line.
type Lines struct {
	// Pieces makes Next, with follow, return what is there of an unfinished line.
	Pieces bool

	stream TaskStream
	files  interfaces.Files
	span   interfaces.Span   // where the next frames begin
	frames interfaces.Frames // nil while none are open
	times  interfaces.LogTimes
	timed  string // the file of the times
	data   []byte // the rest of the last frame
	at     int64  // of data in the file; negative for a text that is in no file
	line   Line   // the part of the next one that has been read
	used   bool   // line has been returned

	cutShort bool // only a part of the line before was returned
}

// NewLines returns a reader of a stream, from a position on.
func NewLines(files interfaces.Files, s TaskStream, from interfaces.Span) *Lines {
	return &Lines{stream: s, files: files, span: from, line: Line{TaskStream: s}}
}

// Next returns the next line. At the end it returns io.EOF, and the beginning of an unfinished line stays for Rest or
// for a later Next. With follow it waits for more until following ends. Errors: interfaces.ErrNoLogs, ctx's.
func (l *Lines) Next(ctx, following context.Context, follow bool) (Line, error) {
	if l.used {
		l.line.Text, l.used = l.line.Text[:0], false
	}
	for ctx.Err() == nil {
		if len(l.data) > 0 && l.cut() {
			l.used = true
			return l.line, nil
		}
		if l.Pieces && follow && len(l.line.Text) > 0 {
			l.used, l.cutShort = true, true
			return l.line, nil
		}
		if err := l.fill(following, follow); err != nil {
			return Line{}, err
		}
	}
	return Line{}, context.Cause(ctx)
}

// Rest returns the unfinished line at the end.
func (l *Lines) Rest() (Line, bool) {
	if l.used || len(l.line.Text) == 0 {
		return Line{}, false
	}
	l.used = true
	return l.line, true
}

// cut moves data to the line, and reports whether the line is complete.
func (l *Lines) cut() bool {
	if len(l.line.Text) == 0 {
		l.line.Rest, l.cutShort = l.cutShort, false
		l.line.Time = time.Time{}
		if l.times != nil && l.at >= 0 {
			if when, known := l.times.At(l.at); known {
				l.line.Time = when
			}
		}
	}
	n, whole := bytes.IndexByte(l.data, '\n')+1, true
	if n == 0 {
		n, whole = len(l.data), false
	}
	if room := maxLine - len(l.line.Text); n > room {
		n, whole = room, false
	}
	l.line.Text = append(l.line.Text, l.data[:n]...)
	l.data = l.data[n:]
	if l.at >= 0 {
		l.at += int64(n)
	}
	l.cutShort = !whole && len(l.line.Text) == maxLine
	return whole || l.cutShort
}

func (l *Lines) fill(following context.Context, follow bool) error {
	if l.frames != nil && follow && !l.span.Follow {
		l.Close()
	}
	if l.frames == nil {
		l.span.Follow, l.span.Await = follow, follow
		frames, err := l.files.Logs(l.stream.Task, l.stream.Kind, l.span)
		if err != nil {
			return err
		}
		l.frames = frames
	}
	frame, err := l.frames.Next(following)
	if err != nil {
		if following.Err() != nil && !errors.Is(err, io.EOF) {
			err = io.EOF
		}
		return err
	}
	l.data, l.at = frame.Data, frame.Offset-int64(len(frame.Data))
	if frame.FileEvent != "" { // its text is in no file, and a file that was truncated has other times
		l.at = -1
	}
	if frame.FileEvent != "" || frame.File != l.timed {
		l.closeTimes()
	}
	if clock, ok := l.files.(interfaces.LogClock); ok && l.times == nil && frame.FileEvent == "" {
		l.times, l.timed = clock.LogTimes(frame.File), frame.File
	}
	l.span = interfaces.Span{File: frame.File, Offset: frame.Offset, Follow: l.span.Follow, Await: l.span.Await}
	return nil
}

func (l *Lines) closeTimes() {
	if l.times != nil {
		_ = l.times.Close() // it was only read
	}
	l.times, l.timed = nil, ""
}

// Close closes the files. A later Next opens them again.
func (l *Lines) Close() {
	if l.frames != nil {
		_ = l.frames.Close() // they were only read
	}
	l.frames = nil
	l.closeTimes()
}

// Merge calls print with the lines of several streams that are there now, in the order of their times; lines of one
// time are in the order of the streams. A line of an unknown time follows the line before it. With rest, unfinished
// lines at the end are passed on, too.
func Merge(ctx context.Context, streams []*Lines, rest bool, print func(Line) error) error {
	type head struct {
		Line
		from *Lines
		sort time.Time
	}
	var heads []*head
	advance := func(h *head) (there bool, err error) {
		h.Line, err = h.from.Next(ctx, ctx, false)
		there = err == nil
		if errors.Is(err, io.EOF) && rest {
			h.Line, there = h.from.Rest()
		}
		if errors.Is(err, io.EOF) || errors.Is(err, interfaces.ErrNoLogs) {
			err = nil
		}
		if there && !h.Time.IsZero() && !h.Rest {
			h.sort = h.Time
		}
		return there, err
	}
	for _, s := range streams {
		h := &head{from: s}
		there, err := advance(h)
		if err != nil {
			return err
		}
		if there {
			heads = append(heads, h)
		}
	}
	for len(heads) > 0 {
		first := 0
		for i, h := range heads {
			if h.sort.Before(heads[first].sort) {
				first = i
			}
		}
		h := heads[first]
		if err := print(h.Line); err != nil {
			return err
		}
		there, err := advance(h)
		if err != nil {
			return err
		}
		if !there {
			heads = append(heads[:first], heads[first+1:]...)
		}
	}
	return nil
}

// Package linewriter writes lines to a reader that may be slow, or may never read. It promises that Write never waits
// for the reader, that what is queued is bounded, and that lines that did not fit are counted, with a line in their
// place that says how many.
package linewriter

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
)

// maxQueued is how many bytes wait for the reader at most: some hundred lines.
const maxQueued = 64 << 10

// MaxPiece is the longest text that a writer which waits for Room may write, so that what can't wait has room left.
const MaxPiece = 4 << 10

// Writer is an io.Writer, safe for concurrent use. Each call of Write has whole lines.
type Writer struct {
	out io.Writer
	gap func(lost int) []byte

	mu     sync.Mutex // guards the fields below; never held over a write to out
	queue  [][]byte
	queued int           // bytes of the queue, and of the line that is being written
	lost   int           // lines that have not been queued since the last one that was
	passed uint64        // lines that out has taken
	idle   chan struct{} // closed when the queue is empty; nil when it is
	room   chan struct{} // closed when the queue is half empty; nil when nobody waits for that
}

var _ io.Writer = (*Writer)(nil)

// New makes a Writer. gap gives the line that says how many lines were lost.
func New(out io.Writer, gap func(lost int) []byte) *Writer { return &Writer{out: out, gap: gap} }

// Write never fails: a reader that has gone away is none of the writer's business.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queued > 0 && w.queued+len(p) > maxQueued {
		w.lost += bytes.Count(p, []byte("\n"))
		return len(p), nil
	}
	w.sayGapLocked()
	w.pushLocked(bytes.Clone(p))
	if w.idle == nil {
		w.idle = make(chan struct{})
		go w.drain() // ends with the queue, or with the process when the reader never reads
	}
	return len(p), nil
}

func (w *Writer) sayGapLocked() {
	if w.lost > 0 {
		w.pushLocked(w.gap(w.lost))
		w.lost = 0
	}
}

func (w *Writer) pushLocked(p []byte) {
	w.queue = append(w.queue, p)
	w.queued += len(p)
}

// drain writes until the queue is empty.
func (w *Writer) drain() {
	for p := w.next(); p != nil; p = w.next() {
		_, _ = w.out.Write(p) // see Write
		w.mu.Lock()
		w.queued -= len(p)
		w.passed++
		if w.room != nil && w.queued <= maxQueued/2 {
			close(w.room)
			w.room = nil
		}
		w.mu.Unlock()
	}
}

// next takes a line from the queue, nil for none.
func (w *Writer) next() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.sayGapLocked()
	}
	if len(w.queue) == 0 {
		close(w.idle)
		w.idle, w.queue = nil, nil
		return nil
	}
	p := w.queue[0]
	w.queue = w.queue[1:]
	return p
}

// Room returns when the queue is at most half full, or when ctx ends. It is for a writer that can wait for the reader:
// one at a time.
func (w *Writer) Room(ctx context.Context) {
	w.mu.Lock()
	for w.queued > maxQueued/2 {
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return
		}
		w.mu.Lock()
	}
	w.mu.Unlock()
}

// Flush waits until all lines have been written. It gives up when ctx ends, or when none has got through within
// timeout.
func (w *Writer) Flush(ctx context.Context, timeout time.Duration) {
	for idle, passed := w.state(); idle != nil; {
		select {
		case <-idle:
		case <-ctx.Done():
			return
		case <-time.After(timeout):
		}
		was := passed
		if idle, passed = w.state(); passed == was {
			return
		}
	}
}

func (w *Writer) state() (idle <-chan struct{}, passed uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle, w.passed
}

// OneLine returns a message without line breaks, and without what a task or a file put into it to steer the terminal.
func OneLine(s string) string {
	return Printable(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		return r
	}, s))
}

// Printable is OneLine for a text that keeps its lines and tabs.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if steers(r) && r != '\n' && r != '\t' {
			return '?'
		}
		return r
	}, s)
}

// steers reports whether a character steers the terminal, or changes the order in which others are shown: a control
// character, one of the writing direction such as U+202E, or a separator of lines.
func steers(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

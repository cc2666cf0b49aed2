// Package agentlog lets readers follow what an agent logs, in the lines that Nomad's agent has, beside the handler that
// prints it. It promises that logging never waits for a reader, that a line is formatted only when somebody reads, and
// that a reader who is too slow learns how many lines were lost.
package agentlog

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// maxUnread is how many lines wait for a slow reader.
const maxUnread = 512

// LevelTrace is Nomad's lowest level.
const LevelTrace = slog.Level(-8)

// Log is a slog.Handler that passes records on to another handler and to its readers.
type Log struct {
	next       slog.Handler
	text, json slog.Handler // they write into the hub's buffer
	hub        *hub
}

var _ slog.Handler = (*Log)(nil)

// New returns a handler that passes records on to next.
func New(next slog.Handler) *Log {
	h := &hub{readers: map[*reader]struct{}{}}
	h.wanted.Store(math.MaxInt64)
	every := LevelTrace - 1
	return &Log{
		next: next, hub: h,
		text: slog.NewTextHandler(&h.buffer, &slog.HandlerOptions{Level: every, ReplaceAttr: withoutHead}),
		json: slog.NewJSONHandler(&h.buffer, &slog.HandlerOptions{Level: every, ReplaceAttr: nomadKeys}),
	}
}

// Enabled reports whether the next handler or a reader wants records of the level.
func (l *Log) Enabled(ctx context.Context, level slog.Level) bool {
	return int64(level) >= l.hub.wanted.Load() || l.next.Enabled(ctx, level)
}

// Handle passes the record on, and to the readers that want it. Its error is that of the next handler.
func (l *Log) Handle(ctx context.Context, record slog.Record) error {
	if int64(record.Level) >= l.hub.wanted.Load() {
		l.hub.publish(ctx, record, l.text, l.json)
	}
	if !l.next.Enabled(ctx, record.Level) {
		return nil
	}
	return l.next.Handle(ctx, record)
}

// WithAttrs returns a handler with the attributes, which has the same readers.
func (l *Log) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Log{next: l.next.WithAttrs(attrs), text: l.text.WithAttrs(attrs), json: l.json.WithAttrs(attrs), hub: l.hub}
}

// WithGroup returns a handler with the group, which has the same readers.
func (l *Log) WithGroup(name string) slog.Handler {
	return &Log{next: l.next.WithGroup(name), text: l.text.WithGroup(name), json: l.json.WithGroup(name), hub: l.hub}
}

// Follow returns the lines that are logged from now on, from the level up, as text or as JSON, until stop is called.
// Each line has its newline. The channel is never closed. A reader who is too slow loses lines, and a line says how
// many.
func (l *Log) Follow(level slog.Level, asJSON bool) (lines <-chan []byte, stop func()) {
	r := &reader{level: level, json: asJSON, lines: make(chan []byte, maxUnread)}
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.hub.readers[r] = struct{}{}
	l.hub.count()
	return r.lines, func() {
		l.hub.mu.Lock()
		defer l.hub.mu.Unlock()
		delete(l.hub.readers, r)
		l.hub.count()
	}
}

// reader follows a log.
type reader struct {
	level slog.Level
	json  bool
	lines chan []byte
	lost  int // guarded by hub.mu
}

// hub is shared by all handlers of a log.
type hub struct {
	wanted atomic.Int64 // the lowest level that a reader wants; the highest number without readers

	mu      sync.Mutex // guards the fields below
	readers map[*reader]struct{}
	buffer  bytes.Buffer // for the line that is being formatted
}

// count sets wanted.
func (h *hub) count() {
	wanted := int64(math.MaxInt64)
	for r := range h.readers {
		wanted = min(wanted, int64(r.level))
	}
	h.wanted.Store(wanted)
}

// publish formats the record and gives it to the readers.
func (h *hub) publish(ctx context.Context, record slog.Record, text, json slog.Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var asText, asJSON []byte
	for r := range h.readers {
		switch {
		case record.Level < r.level:
		case r.json:
			if asJSON == nil {
				asJSON = h.format(ctx, record, "", json)
			}
			r.put(asJSON)
		default:
			if asText == nil {
				asText = h.format(ctx, record, head(record.Time, record.Level, record.Message), text)
			}
			r.put(asText)
		}
	}
}

func (h *hub) format(ctx context.Context, record slog.Record, head string, handler slog.Handler) []byte {
	h.buffer.Reset()
	if err := handler.Handle(ctx, record); err != nil { // a buffer takes everything; an attribute may not be JSON
		fmt.Fprintf(&h.buffer, "%q\n", err)
	}
	attrs := h.buffer.String()
	if head != "" && attrs != "\n" {
		head += ": "
	}
	return []byte(head + attrs)
}

// put gives the reader a line, or counts it as lost.
func (r *reader) put(line []byte) {
	if r.lost > 0 {
		select {
		case r.lines <- r.lostLine():
			r.lost = 0
		default:
			r.lost++
			return
		}
	}
	select {
	case r.lines <- line:
	default:
		r.lost++
	}
}

func (r *reader) lostLine() []byte {
	message := fmt.Sprintf("%d lines were lost, because they were not read in time", r.lost)
	if !r.json {
		return []byte(head(time.Now(), slog.LevelWarn, message) + "\n")
	}
	return fmt.Appendf(nil, `{"@level":"warn","@message":%q,"@module":"agent","@timestamp":%q}`+"\n",
		message, time.Now().Format(stamp))
}

// stamp is the time of Nomad's lines.
const stamp = "2006-01-02T15:04:05.000Z07:00"

// head returns a line of Nomad's agent up to the attributes.
func head(at time.Time, level slog.Level, message string) string {
	return fmt.Sprintf("%s %-7s agent: %s", at.Format(stamp), "["+levelName(level)+"]", oneLine(message))
}

func levelName(level slog.Level) string {
	switch {
	case level < slog.LevelDebug:
		return "TRACE"
	case level < slog.LevelInfo:
		return "DEBUG"
	case level < slog.LevelWarn:
		return "INFO"
	case level < slog.LevelError:
		return "WARN"
	}
	return "ERROR"
}

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
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
)

// maxUnread is how many lines wait for a slow reader.
const maxUnread = 512

// LevelTrace is Nomad's lowest level.
const LevelTrace = slog.Level(-8)

// Log is a slog.Handler that passes records on to another handler and to its readers.
type Log struct {
	next   slog.Handler
	attrs  []any  // keys and values
	prefix string // of further keys: the groups
	hub    *hub
}

var _ slog.Handler = (*Log)(nil)

// New returns a handler that passes records on to next.
func New(next slog.Handler) *Log {
	h := &hub{readers: map[*reader]struct{}{}}
	h.wanted.Store(math.MaxInt64)
	return &Log{next: next, hub: h}
}

// Enabled reports whether the next handler or a reader wants records of the level.
func (l *Log) Enabled(ctx context.Context, level slog.Level) bool {
	return int64(level) >= l.hub.wanted.Load() || l.next.Enabled(ctx, level)
}

// Handle passes the record on, and to the readers that want it. Its error is that of the next handler.
func (l *Log) Handle(ctx context.Context, record slog.Record) error {
	if int64(record.Level) >= l.hub.wanted.Load() {
		all := slices.Clone(l.attrs)
		record.Attrs(func(a slog.Attr) bool { all = add(all, l.prefix, a); return true })
		l.hub.publish(record, all)
	}
	if !l.next.Enabled(ctx, record.Level) {
		return nil
	}
	return l.next.Handle(ctx, record)
}

// WithAttrs returns a handler with the attributes, which has the same readers.
func (l *Log) WithAttrs(attrs []slog.Attr) slog.Handler {
	all := slices.Clone(l.attrs)
	for _, a := range attrs {
		all = add(all, l.prefix, a)
	}
	return &Log{l.next.WithAttrs(attrs), all, l.prefix, l.hub}
}

// WithGroup returns a handler with the group, which has the same readers.
func (l *Log) WithGroup(name string) slog.Handler {
	return &Log{l.next.WithGroup(name), l.attrs, l.prefix + name + ".", l.hub}
}

// add adds the keys and values of an attribute.
func add(all []any, prefix string, a slog.Attr) []any {
	value := a.Value.Resolve()
	if value.Kind() != slog.KindGroup {
		return append(all, prefix+a.Key, value.Any())
	}
	for _, member := range value.Group() {
		all = add(all, prefix+a.Key+".", member)
	}
	return all
}

// Follow returns the lines that are logged from now on, from the level up, as text or as JSON, until stop is called.
// Each line has its newline. The channel is never closed. A reader who is too slow loses lines, and a line says how
// many.
func (l *Log) Follow(level slog.Level, asJSON bool) (lines <-chan []byte, stop func()) {
	r := &reader{level: level, lines: make(chan []byte, maxUnread)}
	r.logger = hclog.New(&hclog.LoggerOptions{Name: "agent", Level: hclog.Trace, Output: r, JSONFormat: asJSON})
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

// hub is shared by all handlers of a log.
type hub struct {
	wanted atomic.Int64 // the lowest level that a reader wants; the highest number without readers

	mu      sync.Mutex // guards readers, and is held while they get a record
	readers map[*reader]struct{}
}

// count sets wanted.
func (h *hub) count() {
	wanted := int64(math.MaxInt64)
	for r := range h.readers {
		wanted = min(wanted, int64(r.level))
	}
	h.wanted.Store(wanted)
}

// publish gives the record to the readers that want it. A message with control characters is quoted: a client may have
// sent it, and it may be shown on a terminal.
func (h *hub) publish(record slog.Record, attrs []any) {
	message := record.Message
	if strings.ContainsFunc(message, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		message = strconv.Quote(message)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.readers {
		if record.Level >= r.level {
			r.log(levelOf(record.Level), message, attrs)
		}
	}
}

// reader follows a log.
type reader struct {
	level  slog.Level
	logger hclog.Logger // writes to this reader
	lines  chan []byte
	lost   int
}

func (r *reader) log(level hclog.Level, message string, attrs []any) {
	if lost := r.lost; lost > 0 {
		r.lost = 0
		r.logger.Warn(fmt.Sprintf("%d lines were lost, because they were not read in time", lost))
		if r.lost > 0 { // the reader still does not read
			r.lost = lost + 1
			return
		}
	}
	r.logger.Log(level, message, attrs...)
}

// Write gives the reader a line, or counts it as lost.
func (r *reader) Write(line []byte) (int, error) {
	select {
	case r.lines <- bytes.Clone(line):
	default:
		r.lost++
	}
	return len(line), nil
}

func levelOf(level slog.Level) hclog.Level {
	switch {
	case level < slog.LevelDebug:
		return hclog.Trace
	case level < slog.LevelInfo:
		return hclog.Debug
	case level < slog.LevelWarn:
		return hclog.Info
	case level < slog.LevelError:
		return hclog.Warn
	}
	return hclog.Error
}

package auth

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// ErrAudit refuses a change whose record can't be written.
var ErrAudit = errors.New("the audit log can't be written, and without it no change is made and no command is run")

// AuditConfig configures an AuditLog. Open is required.
type AuditConfig struct {
	// Open opens the file that the lines are written to: see OpenAuditFile. Each line is one call of Write. A file with
	// a method Moved() bool is opened again before a line when Moved returns true.
	Open func() (io.WriteCloser, error)
	// Required refuses changes whose record can't be written, also when a file that has Moved can't be opened again: it
	// may be gone with its lines. Begin writes a record with the outcome Begun before each change.
	Required bool
	// Logger gets a line when records can't be written, at most one a second; nil for none.
	Logger *slog.Logger
}

// AuditLog is an Auditor that writes JSON lines, one for each request that was let in. Refusals are sampled separately
// for each caller, token and reason: the first of a burst are written, and the others are counted. The last of a burst
// is written with the count when the burst ends, and every ten seconds while it lasts. So no refused caller can fill
// the log, or hide among the records of another.
type AuditLog struct {
	config  AuditConfig
	sampler *auditSampler
	failed  rate.Sometimes // samples the warnings

	mu   sync.Mutex     // held while a line is written, so that lines don't mix
	w    io.WriteCloser // guarded by mu, like the fields below; nil once it is closed
	torn bool           // the latest line was written in part
	lost uint64         // lines that could not be written
	err  error          // of the latest line
}

// NewAuditLog opens an AuditLog.
func NewAuditLog(config AuditConfig) (*AuditLog, error) {
	config.Logger = cmp.Or(config.Logger, slog.New(slog.DiscardHandler))
	w, err := config.Open()
	if err != nil {
		return nil, err
	}
	l := &AuditLog{config: config, w: w, failed: rate.Sometimes{Interval: time.Second}}
	l.sampler = newAuditSampler(func(r Record) { _ = l.write(r) })
	return l, nil
}

var _ Auditor = (*AuditLog)(nil)

// Audit writes the record, unless it is one of too many refusals of its kind. A record that can't be written is logged
// and counted.
func (l *AuditLog) Audit(record Record) {
	if record.Outcome != Denied || l.sampler.pass(record) {
		_ = l.write(record)
	}
}

// Begin writes the record if the log is required. Errors: ErrAudit.
func (l *AuditLog) Begin(record Record) error {
	if l.config.Required && l.write(record) != nil {
		return ErrAudit
	}
	return nil
}

// write writes a record's line, and logs, counts and returns a failure.
func (l *AuditLog) write(record Record) error {
	line, err := json.Marshal(record)
	l.mu.Lock()
	var stale error
	if file, ok := l.w.(interface{ Moved() bool }); ok && file.Moved() {
		stale = l.reopen()
	}
	if err == nil && l.w == nil {
		err = os.ErrClosed
	}
	if err == nil {
		err = l.writeBytes(append(line, '\n'))
	}
	if err == nil && l.config.Required {
		err = stale
	}
	if l.err = err; err != nil {
		l.lost++
	}
	lost := l.lost
	l.mu.Unlock()
	if err != nil && due(&l.failed) {
		l.config.Logger.Error("records are missing in the audit log: it can't be written", "error", err, "lost", lost)
	} else if stale != nil && due(&l.failed) {
		l.config.Logger.Error("the audit log was renamed and can't be opened again: lines are still written to that file",
			"error", stale)
	}
	return err
}

// writeBytes writes a line. If the line before was written in part, that is ended first.
func (l *AuditLog) writeBytes(line []byte) error {
	if l.torn {
		line = append([]byte{'\n'}, line...)
	}
	if file, ok := l.w.(interface{ SetWriteDeadline(time.Time) error }); ok {
		wait := writeTime
		if errors.Is(l.err, os.ErrDeadlineExceeded) { // many requests may be waiting for this one
			wait = retryTime
		}
		_ = file.SetWriteDeadline(time.Now().Add(wait)) // of a pipe; other files have none
	}
	n, err := l.w.Write(line)
	if n > 0 {
		l.torn = n < len(line)
	}
	return err
}

// A line may take writeTime to go into a pipe whose reader is slow. When that was not enough for the line before, it
// may take retryTime.
const (
	writeTime = 100 * time.Millisecond
	retryTime = time.Millisecond
)

// Reopen opens the log again, as after its file was renamed. When that fails, the open file stays in use.
func (l *AuditLog) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reopen()
}

func (l *AuditLog) reopen() error {
	if l.w == nil { // it was closed
		return nil
	}
	w, err := l.config.Open()
	if err != nil {
		return err
	}
	old := l.w
	l.w, l.torn, l.err = w, false, nil
	return old.Close()
}

// Close writes the counts of bursts and closes the file.
func (l *AuditLog) Close() error {
	l.sampler.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil {
		return nil
	}
	w := l.w
	l.w = nil
	return w.Close()
}

// AuditStats holds the counters of an AuditLog.
type AuditStats struct {
	Suppressed uint64 // refusals that were left out because there were too many of their kind
	Lost       uint64 // records that could not be written
	Last       error  // of the latest record; nil when it was written
}

// Stats returns the counters as they are now.
func (l *AuditLog) Stats() AuditStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return AuditStats{Suppressed: l.sampler.total.Load(), Lost: l.lost, Last: l.err}
}

// OpenAuditFile opens a file to which an AuditLog appends. A new file is readable by this user alone. A pipe without a
// reader is an error.
func OpenAuditFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ENXIO) { // open(2)
		return nil, errors.New("nobody reads this pipe, or it is a socket: start the reader first, or name a file")
	}
	return file, err
}

// due reports whether an event is among those that are logged. The line is then written outside of s, which would make
// others wait for it.
func due(s *rate.Sometimes) (ok bool) {
	s.Do(func() { ok = true })
	return ok
}

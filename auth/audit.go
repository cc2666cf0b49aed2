package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

// Outcome is what became of an audited request. The set is closed.
type Outcome string

const (
	// Denied: the authenticator refused it.
	Denied Outcome = "denied"
	// Begun: it was let in, and what it asks for is about to be done. Only a log that is required has these; see AuditConfig.
	Begun Outcome = "begun"
	// Done: it was let in, and what it asked for was done.
	Done Outcome = "done"
	// Failed: it was let in, and what it asked for was not done; Status says why.
	Failed Outcome = "failed"
)

// maxPathBytes and maxMethodBytes bound what a caller can write into a line of the audit log. The longest path of ours has about
// 100 bytes, the longest method 7.
const (
	maxPathBytes   = 256
	maxMethodBytes = 16
)

// tokenLike is what may be a token that somebody put into a path: base64 of "{" and what follows, escaped dots included.
var tokenLike = regexp.MustCompile(`eyJ[A-Za-z0-9_.%-]{20,}`)

// maxTextBytes bounds what another issuer can write into it.
const maxTextBytes = 256

// Record is one line of the audit log: who asked for what, and what became of it.
//
// Subject, TokenID, KeyID and Issuer are those of a token that was verified: of one that was not, whatever it says was the caller's
// choice, so nothing of it is recorded. Whatever a caller, another issuer or a job file chose is cut to size; characters that are not printable,
// such as those that control a terminal or the direction of text, are written as in a Go string: \u202e.
type Record struct {
	Time    time.Time `json:"time"`
	Alloc   string    `json:"alloc"`             // of the socket
	Task    string    `json:"task,omitempty"`    // of the socket; empty on the operator's
	Subject string    `json:"subject,omitempty"` // sub
	TokenID string    `json:"jti,omitempty"`
	KeyID   string    `json:"kid,omitempty"`
	Issuer  string    `json:"iss,omitempty"`
	UID     uint32    `json:"uid"` // of the peer, as the kernel has it
	PID     int32     `json:"pid"`
	Method  string    `json:"method"`
	Path    string    `json:"path"` // as in the request, escaped, without the query; what looks like a token is replaced
	Outcome Outcome   `json:"outcome"`
	Status  int       `json:"status,omitempty"` // absent for Begun
	Reason  string    `json:"reason,omitempty"` // of a denial: Reason.String

	// Suppressed is how many records of the same caller, token, outcome and reason before this one were left out, because there were
	// too many.
	Suppressed uint64 `json:"suppressed,omitempty"`
}

// Auditor keeps records. It is called on the request's goroutine, from many at once, and must not wait for long.
type Auditor interface {
	// Audit keeps a record of a request that was answered.
	Audit(Record)
	// Begin is asked before a change is carried out. An error refuses it: there would be no trace of it.
	Begin(Record) error
}

// NewRecord describes a request that was answered with the status, or, when that is 0, one that is about to be carried out. path is
// escaped (URL.EscapedPath). p is nil when the authenticator let nobody in.
func NewRecord(method, path string, owner Owner, peer Peer, p *Principal, status int) Record {
	record := Record{
		Time: time.Now(), Alloc: clean(owner.AllocationID, maxTextBytes), Task: clean(owner.Task, maxTextBytes), UID: peer.UID, PID: peer.PID,
		Method: clean(method, maxMethodBytes), Path: clean(tokenLike.ReplaceAllString(path, "[token]"), maxPathBytes), Outcome: Done, Status: status,
	}
	if p != nil {
		record.Subject, record.TokenID = clean(p.Claims.Subject, maxTextBytes), clean(p.Claims.ID, maxTextBytes)
		record.Issuer, record.KeyID = clean(p.Claims.Issuer, maxTextBytes), clean(p.KeyID, maxTextBytes)
	}
	switch {
	case status == 0:
		record.Outcome = Begun
	case status >= http.StatusBadRequest:
		record.Outcome = Failed
	}
	return record
}

// clean cuts a text to a number of bytes, at a character's border, and escapes what is not printable.
func clean(text string, limit int) string {
	out := make([]byte, 0, min(len(text), limit))
	for i, r := range text {
		before := len(out)
		switch {
		case unicode.IsPrint(r) && r != utf8.RuneError:
			out = utf8.AppendRune(out, r)
		case r == utf8.RuneError:
			out = fmt.Appendf(out, `\x%02x`, text[i])
		case r < 0x10000:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = fmt.Appendf(out, `\U%08x`, r)
		}
		if len(out) > limit {
			return string(out[:before])
		}
	}
	return string(out)
}

// ErrAudit refuses a change because its record can't be written.
var ErrAudit = errors.New("the audit log can't be written, and no change is made without it")

// AuditConfig says how an AuditLog keeps records. Open is required.
type AuditConfig struct {
	// Open opens what the lines are written to: see OpenAuditFile. Each line is handed to it whole, in one call.
	Open func() (io.WriteCloser, error)
	// Required refuses changes whose record can't be written: Begin writes one then, of the outcome Begun, before each.
	Required bool
	// Logger gets a line when records can't be written, at most one a second; nil for none.
	Logger *slog.Logger
}

// AuditLog is an Auditor that writes JSON lines, sampled: of each kind (caller, token, outcome and reason) the first of a burst are
// written, all that were left out are counted, and the last of them is written with their number when the burst ends, or every ten
// seconds while it lasts. So nobody can fill the log, and nobody can hide among the records of another.
type AuditLog struct {
	config  AuditConfig
	sampler *sampler
	failed  rateSampler

	mu   sync.Mutex     // held while a line is written, so that lines don't mix
	w    io.WriteCloser // guarded by mu, as are the others; nil once it is closed
	torn bool           // the latest line was written in part
	lost uint64
	err  error // of the latest line
}

// NewAuditLog opens an AuditLog.
func NewAuditLog(config AuditConfig) (*AuditLog, error) {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	w, err := config.Open()
	if err != nil {
		return nil, err
	}
	l := &AuditLog{config: config, w: w}
	l.sampler = newSampler(func(r Record) { _ = l.write(r) })
	return l, nil
}

var _ Auditor = (*AuditLog)(nil)

// Audit writes the record, unless there are too many of its kind. One that can't be written is logged and counted.
func (l *AuditLog) Audit(record Record) {
	if l.sampler.pass(record) {
		_ = l.write(record)
	}
}

// Begin writes the record when the log is required. Of a kind of which there are too many it is left out while the log can be written.
// Its error is ErrAudit.
func (l *AuditLog) Begin(record Record) error {
	if !l.config.Required {
		return nil
	}
	if !l.sampler.pass(record) && l.writable() {
		return nil
	}
	if l.write(record) != nil {
		return ErrAudit
	}
	return nil
}

// writable reports whether the latest line was written.
func (l *AuditLog) writable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err == nil && l.w != nil
}

// write writes a record's line, and logs, counts and returns a failure.
func (l *AuditLog) write(record Record) error {
	lost, err := l.writeLine(record)
	if err == nil {
		return nil
	}
	if _, ok := l.failed.pass(time.Now(), logsPerSecond); ok {
		l.config.Logger.Error("records are missing in the audit log: it can't be written", "error", err, "lost", lost)
	}
	return err
}

func (l *AuditLog) writeLine(record Record) (lost uint64, err error) {
	line, err := json.Marshal(record)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.w == nil {
		err = os.ErrClosed
	}
	if err == nil {
		err = l.writeBytes(append(line, '\n'))
	}
	l.err = err
	if err != nil {
		l.lost++
	}
	return l.lost, err
}

// writeBytes writes a line. What was left of one that was written in part stays alone on its own.
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

// writeTime is how long a line may take to go into a pipe whose reader is slow, and retryTime how long when that was not enough for the
// line before it.
const (
	writeTime = 100 * time.Millisecond
	retryTime = time.Millisecond
)

// Reopen opens the log again, as after its file was renamed. When that fails, it goes on with the file that it has.
func (l *AuditLog) Reopen() error {
	w, err := l.config.Open()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil { // it was closed
		return w.Close()
	}
	old := l.w
	l.w, l.torn, l.err = w, false, nil
	return old.Close()
}

// Close writes what has been counted of bursts, and closes the file.
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

// AuditStats is what an AuditLog has counted.
type AuditStats struct {
	Suppressed uint64 // records that were left out because there were too many of their kind
	Lost       uint64 // records that could not be written
	Last       error  // why the latest could not; nil when it could
}

// Stats returns the counters as they are now.
func (l *AuditLog) Stats() AuditStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return AuditStats{Suppressed: l.sampler.total.Load(), Lost: l.lost, Last: l.err}
}

// OpenAuditFile opens a file for an AuditLog: lines are added to what is there. A new one is for this user alone. A pipe without a
// reader is an error.
func OpenAuditFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ENXIO) { // open(2)
		return nil, errors.New("nobody reads this pipe, or it is a socket: start the reader first, or name a file")
	}
	return file, err
}

package auth

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"sync"
	"time"
	"unicode/utf8"
)

// Outcome is what became of an audited request. The set is closed.
type Outcome string

const (
	// Denied: the door refused it.
	Denied Outcome = "denied"
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

// Record is one line of the audit log: who asked for what, and what became of it.
type Record struct {
	Time    time.Time `json:"time"`
	Alloc   string    `json:"alloc"`             // of the socket
	Task    string    `json:"task,omitempty"`    // of the socket; empty on the operator's
	Subject string    `json:"subject,omitempty"` // the token's sub claim; empty unless the token is good
	UID     uint32    `json:"uid"`               // of the peer, as the kernel has it
	PID     int32     `json:"pid"`
	Method  string    `json:"method"`
	Path    string    `json:"path"` // without the query; cut after 256 bytes, what looks like a token or is not printable replaced
	Outcome Outcome   `json:"outcome"`
	Status  int       `json:"status"`
	Reason  string    `json:"reason,omitempty"` // of a denial: Reason.String

	// Suppressed is how many denials before this one were left out, because there were too many.
	Suppressed uint64 `json:"suppressed,omitempty"`
}

// Auditor keeps records. It is called on the request's goroutine, from many at once, and must not wait for long.
type Auditor interface {
	Audit(Record)
}

// NewRecord describes a request that was answered with the status. p is nil when the door let nobody in. Whatever in it was
// chosen by the caller is cut to size and cleaned.
func NewRecord(method, path string, owner Owner, peer Peer, p *Principal, status int) Record {
	record := Record{
		Time: time.Now(), Alloc: owner.AllocationID, Task: owner.Task, UID: peer.UID, PID: peer.PID,
		Method: clean(method, maxMethodBytes), Path: clean(tokenLike.ReplaceAllString(path, "[token]"), maxPathBytes), Outcome: Done, Status: status,
	}
	if p != nil {
		record.Subject = p.Claims.Subject
	}
	if status >= http.StatusBadRequest {
		record.Outcome = Failed
	}
	return record
}

// clean cuts a text to a number of bytes, at a character's border, and replaces what is not printable ASCII or a letter beyond it.
func clean(text string, limit int) string {
	out := make([]byte, 0, min(len(text), limit))
	for _, r := range text {
		if r < 0x20 || r == 0x7f || r == utf8.RuneError || (r >= 0x80 && r < 0xa0) || r == '\u2028' || r == '\u2029' {
			r = '?'
		}
		if len(out)+utf8.RuneLen(r) > limit {
			break
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}

// AuditLog is an Auditor that writes JSON lines. Each is handed to the writer whole, in one call.
type AuditLog struct {
	mu   sync.Mutex
	w    io.Writer // guarded by mu
	lost uint64    // guarded by mu
	err  error     // guarded by mu: the last one
}

// NewAuditLog makes an AuditLog on w, which it neither flushes nor closes.
func NewAuditLog(w io.Writer) *AuditLog { return &AuditLog{w: w} }

var _ Auditor = (*AuditLog)(nil)

// Audit writes the record. One that can't be written is counted: see Lost.
func (l *AuditLog) Audit(record Record) {
	line, err := json.Marshal(record)
	l.mu.Lock()
	defer l.mu.Unlock() // the write is under the lock, so that lines don't mix
	if err == nil {
		_, err = l.w.Write(append(line, '\n'))
	}
	if err != nil {
		l.lost++
		l.err = err
	}
}

// Lost is how many records could not be written, and the last reason; nil when none was lost.
func (l *AuditLog) Lost() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost, l.err
}

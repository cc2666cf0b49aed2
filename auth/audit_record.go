package auth

import (
	"fmt"
	"net/http"
	"regexp"
	"time"
	"unicode"
	"unicode/utf8"
)

// Outcome is the result of an audited request. The set is closed.
type Outcome string

const (
	// Denied: the authenticator refused it.
	Denied Outcome = "denied"
	// Begun: it was let in and is about to be carried out. Only a log that is required has these; see AuditConfig.
	Begun Outcome = "begun"
	// Done: it was let in and carried out.
	Done Outcome = "done"
	// Failed: it was let in and not carried out; Status says why.
	Failed Outcome = "failed"
)

// maxPathBytes and maxMethodBytes bound what a caller can write into a line of the audit log. The longest path of ours has about
// 100 bytes, the longest method 7.
const (
	maxPathBytes   = 256
	maxMethodBytes = 16
)

// tokenLike matches what may be a token in a path: base64 of "{" and what follows, escaped dots included.
var tokenLike = regexp.MustCompile(`eyJ[A-Za-z0-9_.%-]{20,}`)

// maxTextBytes bounds what another issuer can write into it.
const maxTextBytes = 256

// Record is one line of the audit log: who sent which request, and its result.
//
// Subject, TokenID, KeyID and Issuer are those of a verified token; nothing is recorded of any other, which holds what its sender likes.
// Text from a caller, another issuer or a job file is cut to size, and characters that are not printable, such as those that control a
// terminal or the direction of text, are written as in a Go string: \u202e.
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
	Path    string    `json:"path"`              // as in the request, escaped, without the query; what looks like a token is replaced
	Program string    `json:"program,omitempty"` // that a request runs in a task, and the task's name: see Runs
	Outcome Outcome   `json:"outcome"`
	Status  int       `json:"status,omitempty"` // absent for Begun
	Reason  string    `json:"reason,omitempty"` // of a denial: Reason.String; "fault" of a request that a test had fail

	// Suppressed is how many records of the same caller, token, outcome and reason before this one were left out, because there were
	// too many.
	Suppressed uint64 `json:"suppressed,omitempty"`
}

// Auditor keeps records. It is called on the request's goroutine, from many at once, and must not wait for long.
type Auditor interface {
	// Audit keeps a record of a request that was answered.
	Audit(Record)
	// Begin is called before a change is carried out. Its error refuses the change, which would leave no trace.
	Begin(Record) error
}

// NewRecord returns the record of a request that was answered with the status, or, when that is 0, of one that is about to be carried out.
// path is escaped (URL.EscapedPath). p is nil for a caller who is not known.
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

// Runs returns the record of a request that runs a program, or a job's action, in a task. The program's arguments are left out: they may hold
// passwords.
func (r Record) Runs(task, program string) Record {
	r.Program = clean(tokenLike.ReplaceAllString(task+": "+program, "[token]"), maxTextBytes)
	return r
}

// clean returns a text with what is not printable escaped, cut between characters to a number of bytes.
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

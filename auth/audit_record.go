package auth

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
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

// maxPathBytes and maxMethodBytes bound what a caller can write into a line of the audit log. The longest path of ours
// is a variable's, of 128 bytes, each of which may come escaped as %61; the longest method has 7.
const (
	maxPathBytes   = 512
	maxMethodBytes = 16
)

// maxTextBytes bounds what another issuer can write into it.
const maxTextBytes = 256

// Record is one line of the audit log: who sent which request, and its result.
//
// Subject, TokenID, KeyID and Issuer are those of a verified token; nothing is recorded of any other, which holds what its sender likes.
// Text from a caller, another issuer or a job file is cut to size, and characters that are not printable, such as those that control a
// terminal or the direction of text, are written as in a Go string: \u202e.
type Record struct {
	Time    time.Time `json:"time"`
	Alloc   string    `json:"alloc,omitempty"`   // of the socket; empty for a Command
	Task    string    `json:"task,omitempty"`    // of the socket; empty on the operator's
	Subject string    `json:"subject,omitempty"` // sub
	TokenID string    `json:"jti,omitempty"`
	KeyID   string    `json:"kid,omitempty"`
	Issuer  string    `json:"iss,omitempty"`
	UID     uint32    `json:"uid"` // of the peer, as the kernel has it
	PID     int32     `json:"pid"`
	Method  string    `json:"method,omitempty"`
	Path    string    `json:"path,omitempty"`    // as in the request, escaped, without the query; a token is replaced
	Program string    `json:"program,omitempty"` // that a request runs in a task, and the task's name: see Runs

	// Command is a command of the data directory's owner about all its allocations. No request carried it; UID is the
	// owner.
	Command string `json:"command,omitempty"`

	Namespace string `json:"namespace,omitempty"` // of the variable that a request is about
	Lock      string `json:"lock,omitempty"`      // acquire, renew or release: a request's operation on that lock

	Outcome Outcome `json:"outcome"`
	Status  int     `json:"status,omitempty"` // absent for Begun
	Reason  string  `json:"reason,omitempty"` // of a denial: Reason.String; "fault" of a request that a test had fail

	// Suppressed is how many refusals of the same caller and token for the same reason before this one were left out,
	// because there were too many.
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
		Method: clean(method, maxMethodBytes), Path: clean(hideTokensInPath(path), maxPathBytes),
		Outcome: Done, Status: status,
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

// NewCommandRecord returns the record of a command, which is about to be carried out.
func NewCommandRecord(command string) Record {
	return Record{
		Time: time.Now(), UID: uint32(os.Getuid()), PID: int32(os.Getpid()),
		Command: clean(hideTokens(command), maxTextBytes), Outcome: Begun,
	}
}

// Runs returns the record of a request that runs a program, or a job's action, in a task. The program's arguments are left out: they may hold
// passwords.
func (r Record) Runs(task, program string) Record {
	r.Program = clean(hideTokens(task+": "+program), maxTextBytes)
	return r
}

// About returns the record with the namespace of the request's variable, and with the operation on its lock; empty for
// none.
func (r Record) About(namespace, lock string) Record {
	r.Namespace, r.Lock = clean(hideTokens(namespace), maxTextBytes), lock
	return r
}

// hidden stands for a token.
const hidden = "[token]"

// tokenText matches what may hold a token: letters of base64, with dots.
var tokenText = regexp.MustCompile(`[\w.-]*eyJ[\w.-]*`)

// hideTokens replaces each token in a text. A token is a header and claims, each a JSON object in base64, and what
// follows. A mere name that begins like a token stays readable.
func hideTokens(text string) string {
	return tokenText.ReplaceAllStringFunc(text, func(found string) string {
		parts := strings.Split(found, ".")
		for i := 0; i+2 < len(parts); i++ {
			begin := strings.Index(parts[i], "eyJ") // {" in base64
			if begin >= 0 && isObject(parts[i][begin:]) && isObject(parts[i+1]) {
				return strings.Join(append(parts[:i], parts[i][:begin]+hidden), ".")
			}
		}
		return found
	})
}

// isObject reports whether a text is a JSON object in base64.
func isObject(text string) bool {
	plain, err := base64.RawURLEncoding.DecodeString(text)
	return err == nil && len(plain) > 0 && plain[0] == '{' && json.Valid(plain)
}

// hideTokensInPath replaces each token in a path, and each element of the path that has a token behind escapes.
func hideTokensInPath(path string) string {
	if !strings.Contains(path, "eyJ") && !strings.Contains(path, "%") {
		return path
	}
	elements := strings.Split(path, "/")
	for i, element := range elements {
		elements[i] = hideTokens(element)
		if plain, err := url.PathUnescape(element); err == nil && plain != element && hideTokens(plain) != plain {
			elements[i] = hidden
		}
	}
	return strings.Join(elements, "/")
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

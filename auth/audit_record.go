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
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// Outcome is the result of an audited request. The set is closed.
type Outcome string

const (
	// Denied requests were refused by the Authenticator, or for a missing capability.
	Denied Outcome = "denied"
	// Begun requests are about to be carried out. Only a log that is required has these; see AuditConfig.
	Begun Outcome = "begun"
	// Done requests were carried out.
	Done Outcome = "done"
	// Failed requests were let in and not carried out; Status says why.
	Failed Outcome = "failed"
)

// These bound what somebody can write into a line of the audit log: a caller by a path and a method, and another issuer
// or a job file by other texts. The longest path of the API is a variable's, of 128 bytes, each of which may be escaped
// as %61. The longest method has 7.
const (
	maxPathBytes   = 512
	maxMethodBytes = 16
	maxTextBytes   = 256
)

// Record is one line of the audit log: who sent which request, and its result. The comments of its fields are the table
// of fields in docs/security.md.
//
// Texts from a caller, another issuer or a job file are cut to size. Characters in them that are not printable, such as
// those that control a terminal or the direction of text, are written as in a Go string: \u202e.
type Record struct {
	// When the request was answered; of a stream or a change that is about to be made, when it began.
	Time time.Time `json:"time"`
	// The allocation whose socket was used; absent in the line of a `command`.
	Alloc string `json:"alloc,omitempty"`
	// The task whose socket was used; absent for the operator's.
	Task string `json:"task,omitempty"`
	// The `sub` of the token, as the next three: only of a token that was verified.
	Subject string `json:"subject,omitempty"`
	// The token's ID.
	TokenID string `json:"jti,omitempty"`
	// The ID of the key that signed the token.
	KeyID string `json:"kid,omitempty"`
	// The token's issuer, if it names one.
	Issuer string `json:"iss,omitempty"`
	// The user of the process at the other end of the connection, as the kernel recorded it.
	UID uint32 `json:"uid"`
	// That process; 0 when it is in another PID namespace.
	PID int32 `json:"pid"`
	// The address of a client of another machine; the user is then that of the process which it is connected to.
	Address string `json:"address,omitempty"`
	// The name in that client's certificate.
	Certificate string `json:"certificate,omitempty"`
	// The request's method.
	Method string `json:"method,omitempty"`
	// The request's path, escaped, without the query; `[token]` stands for a token in it.
	Path string `json:"path,omitempty"`
	// The task and the program that the request runs in it, without the program's arguments, which may hold passwords.
	Program string `json:"program,omitempty"`
	// A command of the data directory's owner about all allocations, such as `keyring rotate: KEY_ID`; `uid` is the owner.
	Command string `json:"command,omitempty"`
	// The namespace of the variable that the request is about.
	Namespace string `json:"namespace,omitempty"`
	// What the request does to the variable's lock: `acquire`, `renew` or `release`.
	Lock string `json:"lock,omitempty"`
	// `denied`, `done`, or `failed`, when it was let in and not carried out; `begun` with `audit.required`, before a
	// change is made.
	Outcome Outcome `json:"outcome"`
	// The HTTP status of the answer; absent for `begun`.
	Status int `json:"status,omitempty"`
	// Why the request was denied, such as `expired`; `fault` when a test had it fail.
	Reason string `json:"reason,omitempty"`
	// The capability that the caller lacked, or several of which one would do.
	Capability string `json:"capability,omitempty"`
	// How many earlier refusals of the same caller and token for the same reason have no line, because there were too
	// many.
	Suppressed uint64 `json:"suppressed,omitempty"`
}

// Auditor keeps records. Many goroutines, which serve requests, call it at once, so it must not wait for long.
type Auditor interface {
	// Audit keeps a record of a request that was answered.
	Audit(Record)
	// Begin is called before a change is carried out. An error refuses the change.
	Begin(Record) error
}

// NewRecord returns the record of a request that was answered with the status. A status of 0 means that it is about to
// be carried out. path is escaped (URL.EscapedPath). p is nil when the caller is not known.
func NewRecord(method, path string, owner Owner, peer Peer, p *Principal, status int) Record {
	record := Record{
		Time: time.Now(), Alloc: clean(owner.AllocationID, maxTextBytes), Task: clean(owner.Task, maxTextBytes),
		UID: peer.UID, PID: peer.PID, Address: peer.Address, Certificate: clean(peer.Certificate, maxTextBytes),
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

// NewCommandRecord returns the record of a command that is about to be carried out.
func NewCommandRecord(command string) Record {
	return Record{
		Time: time.Now(), UID: uint32(os.Getuid()), PID: int32(os.Getpid()),
		Command: clean(hideTokens(command), maxTextBytes), Outcome: Begun,
	}
}

// Refused returns the record of a request that was refused for the reason.
func (r Record) Refused(why Reason) Record {
	r.Outcome, r.Status, r.Reason = Denied, why.Status(), why.String()
	return r
}

// Runs returns the record with the program, or the job's action, that the request runs in a task.
func (r Record) Runs(task, program string) Record {
	r.Program = clean(hideTokens(task+": "+program), maxTextBytes)
	return r
}

// About returns the record with the namespace of the request's variable, and with the operation on its lock, "" for
// none.
func (r Record) About(namespace, lock string) Record {
	r.Namespace, r.Lock = clean(hideTokens(namespace), maxTextBytes), lock
	return r
}

// hidden stands for a token.
const hidden = "[token]"

// tokenText matches a text that may hold a token: letters of base64, with dots.
var tokenText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[\w.-]*eyJ[\w.-]*`) })

// hideTokens replaces each token in a text. A token is a header and claims, each a JSON object in base64, and what
// follows. A name that only begins like a token stays readable.
func hideTokens(text string) string {
	return tokenText().ReplaceAllStringFunc(text, func(found string) string {
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

// hideTokensInPath replaces each token in a path, and each element of the path that holds an escaped token.
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

// clean escapes the characters that are not printable, and cuts the text between characters to a number of bytes.
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

// Package apierror is the table of all errors of the API: each Kind with its HTTP status and the words that the client
// reads. Where Nomad has words for an error, these are Nomad's, because clients match on them. No part of an error's
// cause reaches a client. denial.go has the words for the refusals of package auth. causes.go maps the errors of a
// runner and of the shared store to Kinds.
package apierror

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Kind is a kind of error: its HTTP status, and its words with verbs for the parts that differ from error to error. The
// set is closed.
type Kind struct {
	status int
	words  string
}

// kinds holds all Kinds except Internal, for the test that no two are equal.
var kinds []Kind

// kind makes a Kind. Inlined for each of them, it would be 20 KB of code.
//
//go:noinline
func kind(status int, words string) Kind {
	kinds = append(kinds, Kind{status, words})
	return kinds[len(kinds)-1]
}

// The kinds, each of which is another value.
var (
	// Internal is a fault of the server. It is the zero Kind, so that an unclassified error never blames the caller.
	Internal Kind

	// Wrong requests, which stay wrong when they are sent again.

	Invalid         = kind(http.StatusBadRequest, "%s") // for the reason that is given
	AmbiguousLength = kind(http.StatusBadRequest,
		"the length of the body must be given by Content-Length or by Transfer-Encoding, in HTTP/1.1, and not by both")
	TaskAndAllTasks = kind(http.StatusBadRequest, "task name cannot be set when restarting all tasks")
	UnknownSignal   = kind(http.StatusBadRequest, "unknown signal %s")
	UndecodableBody = kind(http.StatusBadRequest, "Failed to decode body: %s")
	JobMissing      = kind(http.StatusBadRequest, "Job must be specified")
	JobWithoutID    = kind(http.StatusBadRequest, "Job must have an ID")
	FuzzyTooShort   = kind(http.StatusBadRequest, "fuzzy search query must be at least %d characters, got %d")
	JobMismatch     = kind(http.StatusBadRequest, "Job ID does not match")
	NoRegion        = kind(http.StatusBadRequest, "No path to region")

	// Files that the caller may not read.

	PathEscapes    = kind(http.StatusForbidden, "Path escapes the alloc directory")
	SecretFile     = kind(http.StatusForbidden, "Reading secret file prohibited: %s")
	PrivateFile    = kind(http.StatusForbidden, "Reading private file prohibited: %s")
	FilePermission = kind(http.StatusForbidden, "%s: permission denied for the task's user")

	// The object does not exist, or the caller may not see it.

	NoRoute        = kind(http.StatusNotFound, "resource not found")
	NotImplemented = kind(http.StatusNotImplemented, "%s")
	NoAlloc        = kind(http.StatusNotFound, "alloc not found") // of Nomad's servers
	// NoAllocation is NoAlloc in the words of a stop.
	NoAllocation    = kind(http.StatusNotFound, "allocation not found")
	NoAllocOnClient = kind(http.StatusNotFound, "Unknown allocation %q") // of Nomad's clients
	NoJob           = kind(http.StatusNotFound, "job not found")
	OtherJob        = kind(http.StatusNotFound, "this allocation runs the job %q")
	NoVersions      = kind(http.StatusNotFound, "job versions not found")
	NoVersion       = kind(http.StatusNotFound, "job %q at version %d not found")
	NoSubmission    = kind(http.StatusNotFound, "job source not found") // of a version of a job
	NoDeployment    = kind(http.StatusNotFound, "deployment not found")
	NoNode          = kind(http.StatusNotFound, "node not found")
	NoPool          = kind(http.StatusNotFound, "node pool not found")
	NoServer        = kind(http.StatusNotFound, "unknown Nomad server %s")
	NoNamespace     = kind(http.StatusNotFound, "Namespace not found")
	NoEval          = kind(http.StatusNotFound, "eval not found")
	NoService       = kind(http.StatusNotFound, "service registration not found")
	NoTask          = kind(http.StatusNotFound, "Task not found")
	// NoTaskRunner is NoTask in the words of a restart.
	NoTaskRunner   = kind(http.StatusNotFound, "Could not find task runner for task: %s")
	NoFile         = kind(http.StatusNotFound, "%s: no such file or directory")
	NoLogs         = kind(http.StatusNotFound, "log entry for task %q and log type %q not found")
	TaskNotStarted = kind(http.StatusNotFound, "task %q not started yet. No logs available")
	NoAction       = kind(http.StatusNotFound, "action %s not found in %s: %s")
	NoVariable     = kind(http.StatusNotFound, "variable not found")
	NoLockVariable = kind(http.StatusNotFound, "variable doesn't exist")
	// Objects of which there is none here.
	NoPolicy        = kind(http.StatusNotFound, "ACL policy not found")
	NoRole          = kind(http.StatusNotFound, "ACL role not found")
	NoToken         = kind(http.StatusNotFound, "ACL token not found") // but the caller's own
	NoAuthMethod    = kind(http.StatusNotFound, "ACL auth-method not found")
	NoBindingRule   = kind(http.StatusNotFound, "ACL binding rule not found")
	NoScalingPolicy = kind(http.StatusNotFound, "policy not found")
	NoVolume        = kind(http.StatusNotFound, "volume not found")
	NoPlugin        = kind(http.StatusNotFound, "plugin not found")
	WrongMethod     = kind(http.StatusMethodNotAllowed, "Invalid method")

	// Good requests that the present state does not allow.

	Conflict       = kind(http.StatusConflict, "%s") // for the reason that is given
	TaskNotRunning = kind(http.StatusConflict, "Task not running")
	AllocTerminal  = kind(http.StatusConflict, "restart of an alloc that should not run")
	// AllocEnding is AllocTerminal in the words of an update.
	AllocEnding     = kind(http.StatusConflict, "the allocation is ending or over: it takes no other job")
	NotCollectable  = kind(http.StatusConflict, "No such allocation on client, or allocation not eligible for GC")
	EnforcedMissing = kind(http.StatusConflict, "Enforcing job modify index 0: job already exists")
	EnforcedIndex   = kind(http.StatusConflict,
		"Enforcing job modify index %d: job exists with conflicting job modify index: %d")
	NoLock         = kind(http.StatusConflict, "variable doesn't hold a lock")
	VariableLocked = kind(http.StatusConflict, "attempting to modify locked variable")

	// Too much.

	BodyTooLarge   = kind(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes")
	StoreFull      = kind(http.StatusRequestEntityTooLarge, "%s") // the store that allocations share is full
	TooManyStreams = kind(http.StatusTooManyRequests, "%d streams are open on this socket, and no more are possible")
	TooManyWaits   = kind(http.StatusTooManyRequests, "%d blocking queries wait on this socket, and no more are possible")
	TooManyBulky   = kind(http.StatusTooManyRequests,
		"the long answers that are made or not yet read take all of their %d MB")
	TooManyFiles = kind(http.StatusBadRequest, "%s: too many entries to list")
	TooManyExecs = kind(http.StatusTooManyRequests, "as many commands run in the allocation's tasks as may at a time")
	UnderWay     = kind(http.StatusTooManyRequests,
		"another registration or a stop of job %q is under way; try again")

	// The same request may succeed later.

	Unavailable = kind(http.StatusServiceUnavailable, "%s") // for the reason that is given
	// BadGateway is for a change whose result is not known. Sending it again may make it twice.
	BadGateway = kind(http.StatusBadGateway,
		"the agent's answer was lost: look whether the change was made before you send it again")
	CutOff    = kind(http.StatusServiceUnavailable, "the request was cut off")
	NotStored = kind(http.StatusServiceUnavailable, "the allocation goes on as it is: %s")
)

// Status returns the HTTP status.
func (k Kind) Status() int { return cmp.Or(k.status, http.StatusInternalServerError) }

// Words returns the text for the client, with verbs for the parts that differ from error to error.
func (k Kind) Words() string { return cmp.Or(k.words, "internal error") }

// Waitable reports whether the Kind says that an object is missing for which a client of Nomad's servers can wait.
func (k Kind) Waitable() bool {
	switch k {
	case NoAlloc, NoAllocation, NoJob, NoVersions, NoSubmission, NoDeployment, NoNode, NoPool, NoNamespace, NoEval,
		NoPolicy, NoRole, NoToken, NoAuthMethod, NoBindingRule, NoScalingPolicy, NoVolume, NoPlugin:
		return true
	}
	return false
}

// RetryAfter returns a wait as HTTP's header has it (RFC 9110 section 10.2.3): in whole seconds, never too short, at
// least 1.
func RetryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int((wait+time.Second-1)/time.Second)))
}

// Error is an error with a text for the client, and a cause for the log alone.
type Error struct {
	Kind    Kind
	Message string // the answer's body; never a secret, never a path of the host
	Err     error  // the cause, for the log alone; may be nil

	RetryAfter time.Duration // when the same request may succeed; 0: unknown
	Index      uint64        // to wait from for a change; 0: the allocation's, if the kind is Waitable
}

// New returns an Error of the kind. The arguments fill the verbs in its words, if it has any.
func New(kind Kind, args ...any) *Error {
	message := kind.Words()
	if strings.Contains(message, "%") {
		message = fmt.Sprintf(message, args...)
	}
	return &Error{Kind: kind, Message: message}
}

// Because returns the error with a cause.
func (e *Error) Because(cause error) *Error {
	e.Err = cause
	return e
}

// Error returns the text for a log: the message and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

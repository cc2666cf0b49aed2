// Package apierror is the table of everything that can go wrong in the API: each Kind of error with its HTTP status and
// the words that the client reads. Where Nomad has words for an error, these are Nomad's, because clients match on
// them. No part of an error's cause reaches a client. The reasons for which package auth refuses a request are mapped
// to Kinds in denial.go, the errors of a runner and of the shared store in causes.go.
package apierror

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Kind is what went wrong. The set is closed.
type Kind uint8

const (
	// Internal is a fault of ours. It is the zero Kind, so that an error which nobody classified never blames the
	// caller.
	Internal Kind = iota

	// Wrong requests, which stay wrong when they are sent again.

	Invalid              // for the reason that is given
	AmbiguousLength      // the length of the body can be understood in two ways
	AmbiguousCredentials // two tokens that differ
	TaskAndAllTasks
	UnknownSignal
	UndecodableBody
	JobMissing
	JobWithoutID
	FuzzyTooShort
	JobMismatch // the job in the path is not that of the body
	NoRegion    // no server of the region that is named

	// Callers who may not.

	Unauthorized     // no token
	Forbidden        // no valid token
	PermissionDenied // a valid token without the capability
	PathEscapes
	SecretFile
	PrivateFile
	FilePermission // the file is not for the caller's user

	// What does not exist, or is not the caller's to see.

	NoRoute
	NotImplemented  // a route of Nomad's that has no meaning here, for the reason that is given
	NoAlloc         // for Nomad's server
	NoAllocation    // NoAlloc in the words of a stop
	NoAllocOnClient // for Nomad's client
	NoJob
	OtherJob     // the allocation runs another job
	NoVersions   // of a job
	NoVersion    // of a job, with that number
	NoSubmission // of a version of a job
	NoDeployment
	NoNode
	NoServer
	NoNamespace
	NoEval
	NoService // no such registration
	NoTask
	NoTaskRunner // NoTask in the words of a restart
	NoFile
	NoLogs
	TaskNotStarted // NoLogs of a task that has not run
	NoAction
	NoVariable
	NoLockVariable
	WrongMethod // the path exists and does not take this method

	// Good requests that the present state does not allow.

	Conflict // for the reason that is given
	TaskNotRunning
	AllocTerminal
	AllocEnding     // AllocTerminal in the words of an update
	NoSchedule      // of a task that is to be paused, or to run again
	NotCollectable  // an allocation that has not ended
	EnforcedMissing // the client expected no job
	EnforcedIndex   // the client expected another version of the job
	NoLock          // on a variable
	VariableLocked  // by another

	// Too much.

	BodyTooLarge
	StoreFull // the store that allocations share is full
	TooManyStreams
	TooManyWaits
	TooManyBulky
	TooManyFiles // in a directory that is to be listed
	TooManyExecs
	TooManyFailures // of authentication
	TooManyRequests // of a caller who is known

	// What may work later, without a change of the request.

	Unavailable // for the reason that is given
	CutOff
	NotStored

	kinds // how many there are
)

// table is the one place where an error becomes a status and words; a verb in them is filled by the arguments of New.
var table = [kinds]struct {
	status int
	words  string
}{
	Internal: {http.StatusInternalServerError, "internal error"},

	Invalid: {http.StatusBadRequest, "%s"},
	AmbiguousLength: {http.StatusBadRequest,
		"the length of the body must be given by Content-Length or by Transfer-Encoding, in HTTP/1.1, and not by both"},
	AmbiguousCredentials: {http.StatusBadRequest,
		"Ambiguous credentials: send one token, in X-Nomad-Token or in Authorization: Bearer"},
	TaskAndAllTasks: {http.StatusBadRequest, "task name cannot be set when restarting all tasks"},
	UnknownSignal:   {http.StatusBadRequest, "unknown signal %s"},
	UndecodableBody: {http.StatusBadRequest, "Failed to decode body: %s"},
	JobMissing:      {http.StatusBadRequest, "Job must be specified"},
	JobWithoutID:    {http.StatusBadRequest, "Job must have an ID"},
	FuzzyTooShort:   {http.StatusBadRequest, "fuzzy search query must be at least %d characters, got %d"},
	JobMismatch:     {http.StatusBadRequest, "Job ID does not match"},
	NoRegion:        {http.StatusBadRequest, "No path to region"},

	Unauthorized:     {http.StatusUnauthorized, "Unauthorized"},
	Forbidden:        {http.StatusForbidden, "Forbidden"},
	PermissionDenied: {http.StatusForbidden, "Permission denied"},
	PathEscapes:      {http.StatusForbidden, "Path escapes the alloc directory"},
	SecretFile:       {http.StatusForbidden, "Reading secret file prohibited: %s"},
	PrivateFile:      {http.StatusForbidden, "Reading private file prohibited: %s"},
	FilePermission:   {http.StatusForbidden, "%s: permission denied for the task's user"},

	NoRoute:         {http.StatusNotFound, "resource not found"},
	NotImplemented:  {http.StatusNotImplemented, "%s"},
	NoAlloc:         {http.StatusNotFound, "alloc not found"},
	NoAllocation:    {http.StatusNotFound, "allocation not found"},
	NoAllocOnClient: {http.StatusNotFound, "Unknown allocation %q"},
	NoJob:           {http.StatusNotFound, "job not found"},
	OtherJob:        {http.StatusNotFound, "this allocation runs the job %q"},
	NoVersions:      {http.StatusNotFound, "job versions not found"},
	NoVersion:       {http.StatusNotFound, "job %q at version %d not found"},
	NoSubmission:    {http.StatusNotFound, "job source not found"},
	NoDeployment:    {http.StatusNotFound, "deployment not found"},
	NoServer:        {http.StatusNotFound, "unknown Nomad server %s"},
	NoNode:          {http.StatusNotFound, "node not found"},
	NoNamespace:     {http.StatusNotFound, "Namespace not found"},
	NoEval:          {http.StatusNotFound, "eval not found"},
	NoService:       {http.StatusNotFound, "service registration not found"},
	NoTask:          {http.StatusNotFound, "Task not found"},
	NoTaskRunner:    {http.StatusNotFound, "Could not find task runner for task: %s"},
	NoFile:          {http.StatusNotFound, "%s: no such file or directory"},
	NoLogs:          {http.StatusNotFound, "log entry for task %q and log type %q not found"},
	TaskNotStarted:  {http.StatusNotFound, "task %q not started yet. No logs available"},
	NoAction:        {http.StatusNotFound, "action %s not found in %s: %s"},
	NoVariable:      {http.StatusNotFound, "variable not found"},
	NoLockVariable:  {http.StatusNotFound, "variable doesn't exist"},
	WrongMethod:     {http.StatusMethodNotAllowed, "Invalid method"},

	Conflict:        {http.StatusConflict, "%s"},
	TaskNotRunning:  {http.StatusConflict, "Task not running"},
	AllocTerminal:   {http.StatusConflict, "restart of an alloc that should not run"},
	AllocEnding:     {http.StatusConflict, "the allocation is ending or over: it takes no other job"},
	NoSchedule:      {http.StatusConflict, "task %q has no schedule: only a task that runs by one can be paused"},
	NotCollectable:  {http.StatusConflict, "No such allocation on client, or allocation not eligible for GC"},
	EnforcedMissing: {http.StatusConflict, "Enforcing job modify index 0: job already exists"},
	EnforcedIndex: {http.StatusConflict,
		"Enforcing job modify index %d: job exists with conflicting job modify index: %d"},
	NoLock:         {http.StatusConflict, "variable doesn't hold a lock"},
	VariableLocked: {http.StatusConflict, "attempting to modify locked variable"},

	BodyTooLarge:   {http.StatusRequestEntityTooLarge, "the body is larger than %d bytes"},
	StoreFull:      {http.StatusRequestEntityTooLarge, "%s"},
	TooManyStreams: {http.StatusTooManyRequests, "%d streams are open on this socket, and no more are possible"},
	TooManyWaits:   {http.StatusTooManyRequests, "%d blocking queries wait on this socket, and no more are possible"},
	TooManyBulky: {http.StatusTooManyRequests,
		"the long answers that are made or not yet read take all of their %d MB"},
	TooManyFiles:    {http.StatusBadRequest, "%s: too many entries to list"},
	TooManyExecs:    {http.StatusTooManyRequests, "as many commands run in the allocation's tasks as may at a time"},
	TooManyFailures: {http.StatusTooManyRequests, "Too many failed authentication attempts"},
	TooManyRequests: {http.StatusTooManyRequests, "Too many requests"},

	Unavailable: {http.StatusServiceUnavailable, "%s"},
	CutOff:      {http.StatusServiceUnavailable, "the request was cut off"},
	NotStored:   {http.StatusServiceUnavailable, "the allocation goes on as it is: %s"},
}

// Status returns the HTTP status. That of a Kind outside the set is a fault of ours.
func (k Kind) Status() int {
	if k >= kinds {
		return table[Internal].status
	}
	return table[k].status
}

// Words returns the text for the client, with verbs for the parts that differ from error to error.
func (k Kind) Words() string {
	if k >= kinds {
		return table[Internal].words
	}
	return table[k].words
}

// Waitable reports whether the Kind says that something is missing, and a client of Nomad's servers can wait for it.
func (k Kind) Waitable() bool {
	switch k {
	case NoAlloc, NoAllocation, NoJob, NoVersions, NoSubmission, NoDeployment, NoNode, NoNamespace, NoEval:
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

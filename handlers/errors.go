package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Kind is the class of an Error: what went wrong, in the terms that decide the status of an answer. The set is closed.
type Kind uint8

const (
	// Internal is a fault of ours. It is the zero Kind, so that an error nobody classified never blames the caller.
	Internal Kind = iota
	// Invalid: the request itself is wrong and stays wrong when it is sent again.
	Invalid
	// Denied: the caller is known and may not do that.
	Denied
	// NotFound: what the request names does not exist, or is not the caller's to see.
	NotFound
	// Method: the path exists and does not take this method.
	Method
	// Conflict: the request is right and the state of what it names is not (a task that does not run).
	Conflict
	// TooLarge: the body is longer than the server reads.
	TooLarge
	// Exhausted: the caller asks too often.
	Exhausted
	// Unavailable: it may work later, without a change of the request.
	Unavailable
)

// statuses maps every Kind to its HTTP status. It is the only place where one becomes the other.
var statuses = [...]int{
	Internal:    http.StatusInternalServerError,
	Invalid:     http.StatusBadRequest,
	Denied:      http.StatusForbidden,
	NotFound:    http.StatusNotFound,
	Method:      http.StatusMethodNotAllowed,
	Conflict:    http.StatusConflict,
	TooLarge:    http.StatusRequestEntityTooLarge,
	Exhausted:   http.StatusTooManyRequests,
	Unavailable: http.StatusServiceUnavailable,
}

// Error is an error with what the client reads and what the log keeps, apart from each other.
type Error struct {
	Kind    Kind
	Message string // the answer's body; never a secret, never a path of the host
	Err     error  // the cause, for the log alone; may be nil

	RetryAfter time.Duration // when the same request may succeed; 0 for no word on it
}

// Error is the text for a log: the message and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// internalMessage is all that a client learns of a fault of ours.
const internalMessage = "internal error"

// asError finds the Error in err. Anything else is Internal with the bare words; a body that broke MaxBytesReader's limit is
// TooLarge wherever it surfaced.
func asError(err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &Error{Kind: TooLarge, Message: fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit)}
	}
	return &Error{Kind: Internal, Message: internalMessage, Err: err}
}

// status is the HTTP status of the error. A Kind outside the set is a fault of ours.
func (e *Error) status() int {
	if int(e.Kind) >= len(statuses) {
		return http.StatusInternalServerError
	}
	return statuses[e.Kind]
}

// abandoned reports that err is no more than the client having gone away, or the server's end cutting the request off: nothing
// went wrong, and nothing was done either, which whoever still reads has to learn.
func abandoned(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}

func invalid(message string) error { return &Error{Kind: Invalid, Message: message} }

func notFound(message string) error { return &Error{Kind: NotFound, Message: message} }

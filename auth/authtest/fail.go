package authtest

import (
	"net/http"
	"time"

	"taskapi/handlers/faults"
)

// Fault is an effect of a server in trouble on some requests: see package faults.
type Fault = faults.Fault

// TooManyRequests is 429 with a Retry-After in whole seconds, or without one for 0.
func TooManyRequests(retryAfter time.Duration) Fault {
	return Fault{Status: http.StatusTooManyRequests, RetryAfter: retryAfter}
}

// Unavailable is 503.
func Unavailable() Fault { return Fault{Status: http.StatusServiceUnavailable} }

// Hang never answers, so that the client has to give up. Server.StopFailing and the end of the test also end it.
func Hang() Fault { return Fault{Hang: true} }

// Cut closes the connection instead of an answer.
func Cut() Fault { return Fault{Cut: true} }

// Tear closes the connection in the middle of an answer.
func Tear() Fault { return Fault{Tear: true} }

// Late answers as usual, but late.
func Late(delay time.Duration) Fault { return Fault{Delay: delay} }

// FailNext applies the fault to the next n requests that have a good token and match it. Earlier faults come first.
func (s *Server) FailNext(n int, f Fault) {
	s.tb.Helper()
	f.Times, f.Always = n, false
	s.Fail(f)
}

// Fail adds a fault.
func (s *Server) Fail(f Fault) {
	s.tb.Helper()
	s.check(s.faults.Add(f), "")
}

// StopFailing removes all faults, and ends requests that hang.
func (s *Server) StopFailing() { s.faults.Clear() }

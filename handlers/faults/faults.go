// Package faults answers some requests as a server in trouble does, so that the clients of the API can be tested: with
// an error of one's choice, late, never, or with a connection that breaks. It promises that each request gets the first
// fault that is for it, or its own answer, and that nothing waits after Clear. It never lets anybody in, or learns of,
// a request that the authenticator has refused. Only tests and `taskapi dev` have faults; see handlers.Config.
package faults

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// ErrFault is a Fault that says nothing, or two things that can't both be.
var ErrFault = errors.New("invalid fault")

// MaxFaults is how many faults a Set holds: enough for a test that scripts every request.
const MaxFaults = 1000

// Fault says what happens to which requests. The zero values of Task, Method and Path match all. One of Status, Hang,
// Cut and Tear says what the client gets; with Delay alone it gets its answer, late.
type Fault struct {
	Task   string // whose socket
	Method string
	Path   string // as in the request, without the query: a pattern of path.Match, or all below it if it ends in "/"

	Skip   int  // so many requests that match pass first
	Times  int  // how many are hit then; 0 means 1
	Always bool // all are, from then on

	Delay      time.Duration // before what follows; bounded by the end of the request
	Status     int           // 400 to 599
	RetryAfter time.Duration // with Status: the header, in whole seconds; 0 for none
	Body       string        // with Status; empty means the status in words
	Hang       bool          // there is no answer, until the client gives up
	Cut        bool          // the connection is closed instead of an answer
	Tear       bool          // the connection is closed in the middle of an answer
}

// String returns what the client gets.
func (f Fault) String() string {
	switch {
	case f.Hang:
		return "no answer"
	case f.Cut:
		return "a connection cut off"
	case f.Tear:
		return "half an answer"
	case f.Status != 0:
		return fmt.Sprintf("status %d", f.Status)
	}
	return fmt.Sprintf("an answer %v late", f.Delay)
}

// check returns what is wrong with a fault.
func (f Fault) check() error {
	kinds := 0
	for _, is := range []bool{f.Status != 0, f.Hang, f.Cut, f.Tear} {
		if is {
			kinds++
		}
	}
	_, pattern := path.Match(f.Path, "")
	switch {
	case kinds > 1:
		return fmt.Errorf("%w: more than one of status, hang, cut and tear", ErrFault)
	case kinds == 0 && f.Delay == 0:
		return fmt.Errorf("%w: it says nothing: set status, hang, cut, tear or delay", ErrFault)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("%w: status %d is not one of an error, 400 to 599", ErrFault, f.Status)
	case f.Status == 0 && (f.RetryAfter != 0 || f.Body != ""):
		return fmt.Errorf("%w: retry_after and body go with a status", ErrFault)
	case f.Skip < 0 || f.Times < 0 || f.Delay < 0 || f.RetryAfter < 0:
		return fmt.Errorf("%w: skip, times, delay or retry_after is negative", ErrFault)
	case f.Always && f.Times != 0:
		return fmt.Errorf("%w: times goes without always", ErrFault)
	case f.Path != "" && !strings.HasPrefix(f.Path, "/"):
		return fmt.Errorf("%w: path %q does not begin with /", ErrFault, f.Path)
	case pattern != nil:
		return fmt.Errorf("%w: path %q is no pattern: *, ? and [a-z] have a meaning, \\ takes it away", ErrFault, f.Path)
	}
	return nil
}

// matches reports whether a fault is for a request.
func (f *Fault) matches(r *http.Request, owner auth.Owner) bool {
	if f.Task != "" && f.Task != owner.Task || f.Method != "" && !strings.EqualFold(f.Method, r.Method) {
		return false
	}
	if f.Path == "" || strings.HasSuffix(f.Path, "/") && strings.HasPrefix(r.URL.Path, f.Path) {
		return true
	}
	ok, _ := path.Match(f.Path, r.URL.Path) // check has seen the pattern
	return ok
}

// Set is the faults that are still to come. Its zero value is ready, and has none.
type Set struct {
	mu     sync.Mutex // guards the fields below
	faults []Fault
	closed chan struct{} // nil until a request waits
}

// Add adds faults: earlier ones come first. Errors: ErrFault, and then none is added.
func (s *Set) Add(faults ...Fault) error {
	checked := slices.Clone(faults)
	for i := range checked {
		if err := checked[i].check(); err != nil {
			return err
		}
		if !checked[i].Always {
			checked[i].Times = max(checked[i].Times, 1)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults)+len(checked) > MaxFaults {
		return fmt.Errorf("%w: more than %d", ErrFault, MaxFaults)
	}
	s.faults = append(s.faults, checked...)
	return nil
}

// Left returns the faults that no request has met, or not often enough.
func (s *Set) Left() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.faults)
}

// Clear removes all faults, and ends the requests that hang.
func (s *Set) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
	if s.closed != nil {
		close(s.closed)
		s.closed = nil
	}
}

// Next returns what answers a request, with its status, 0 for none; a nil handler leaves it to its route: see
// handlers.Config.Fault. It returns late when the fault has a delay.
func (s *Set) Next(r *http.Request, owner auth.Owner) (status int, answer http.Handler) {
	f, cleared := s.take(r, owner)
	if f == nil {
		return 0, nil
	}
	if f.Delay > 0 && !wait(r, f.Delay, cleared) {
		return 0, http.HandlerFunc(abort)
	}
	switch {
	case f.Hang:
		return 0, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-cleared:
			}
			abort(w, r)
		})
	case f.Cut:
		return 0, http.HandlerFunc(abort)
	case f.Tear:
		return http.StatusOK, http.HandlerFunc(tear)
	case f.Status != 0:
		return f.Status, http.HandlerFunc(f.write)
	}
	return 0, nil
}

// take returns the first fault that is for a request, or nil, and counts it; cleared is closed by Clear.
func (s *Set) take(r *http.Request, owner auth.Owner) (f *Fault, cleared <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.faults {
		f := &s.faults[i]
		if !f.matches(r, owner) {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		found := *f
		if !f.Always {
			if f.Times--; f.Times == 0 {
				s.faults = slices.Delete(s.faults, i, i+1)
			}
		}
		if s.closed == nil {
			s.closed = make(chan struct{})
		}
		return &found, s.closed
	}
	return nil, nil
}

// wait waits, and reports whether the client is still there.
func wait(r *http.Request, delay time.Duration, cleared <-chan struct{}) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-cleared:
	case <-r.Context().Done():
		return false
	}
	return true
}

// write answers with the fault's status.
func (f *Fault) write(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	if f.RetryAfter > 0 {
		h.Set("Retry-After", apierror.RetryAfter(f.RetryAfter))
	}
	body := f.Body
	if body == "" {
		body = http.StatusText(f.Status)
	}
	w.WriteHeader(f.Status)
	_, _ = w.Write([]byte(body)) // a client that does not read it loses nothing
}

// tear begins an answer that is never ended.
func tear(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "1000")
	_, _ = w.Write([]byte(`[{"ID":"`))        // the client may be gone
	_ = http.NewResponseController(w).Flush() // as here
	abort(w, r)
}

// abort makes net/http close the connection.
func abort(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Package faults answers some requests as a server in trouble does, so that clients of the API can be tested: with an
// error, late, never, or with a connection that breaks. Each request gets the first fault that matches it, or else its
// own answer. Nothing waits after Clear. A request that the authenticator refuses meets no fault. Only tests and
// `taskapi dev` have faults; see handlers.Config.
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

// ErrFault means that a Fault has no effect, or two that exclude each other.
var ErrFault = errors.New("invalid fault")

// MaxFaults is how many faults a Set holds: enough for a test that scripts every request.
const MaxFaults = 1000

// Fault is an effect on some requests. Task, Method and Path select the requests; empty, they match all. The effect is
// one of Status, Hang, Cut and Tear; with Delay alone the client gets its own answer, late. In a file the fields have
// the names in their tags.
type Fault struct {
	Task   string `json:"task"` // whose socket
	Method string `json:"method"`
	Path   string `json:"path"` // without the query: a pattern of path.Match, or all below it if it ends in "/"

	Skip   int  `json:"skip"`   // this many matching requests pass first
	Times  int  `json:"times"`  // this many are then hit; 0 means 1
	Always bool `json:"always"` // all later ones are hit

	Delay      time.Duration `json:"-"`      // before the effect; bounded by the end of the request
	Status     int           `json:"status"` // 400 to 599
	RetryAfter time.Duration `json:"-"`      // with Status: the header, in whole seconds; 0 for none
	Body       string        `json:"body"`   // with Status; empty means the status in words
	Hang       bool          `json:"hang"`   // there is no answer until the client gives up
	Cut        bool          `json:"cut"`    // the connection is closed instead of an answer
	Tear       bool          `json:"tear"`   // the connection is closed in the middle of an answer
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

// check returns the mistake in a fault.
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

// matches reports whether the fault is for the request.
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

// Set holds the faults that are still to come. Its zero value is ready, and has none.
type Set struct {
	mu     sync.Mutex // guards the fields below
	faults []Fault
	closed chan struct{} // nil until a request waits
}

// Add adds faults behind the others. Errors: ErrFault; then none is added.
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

// Left returns the faults that are still to come.
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

// take returns the first fault that matches the request, or nil, and counts the request. Clear closes cleared.
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

// wait waits, and reports whether the client is still connected.
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

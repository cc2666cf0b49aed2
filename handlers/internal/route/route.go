// Package route leads a request from its head to its answer by a table of routes. Server answers the requests on a
// socket: it authenticates the caller, finds the route, checks that the caller has the capability which the route
// names, records what may change something, calls the route's handler, and sends the result. socket.serve and
// socket.routed are that way, step by step.
//
// The rest is for the authors of handlers. Read, Write, Ask and Remove make a Route. A Request has the parameters, the
// allocation as the caller may see it, and methods to wait and to take turns. An Answer is a JSON value, a stream or an
// upgraded connection. A request that waits or lasts is authorized again before it goes on.
package route

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// Handler answers one request. Its error is mapped to a status in one place; see apierror.
type Handler func(ctx context.Context, r *Request) (Answer, error)

// AnswerKind is the form of a route's answers.
type AnswerKind string

// The kinds of answers. All of them are behind the same authentication. Those that may last are among the socket's
// streams, and end with the token that opened them and with the server.
const (
	JSON    AnswerKind = "JSON"      // one value, or a document of another type that is as short
	Stream  AnswerKind = "stream"    // lines of JSON as they come
	Raw     AnswerKind = "raw"       // bytes of any number
	Upgrade AnswerKind = "websocket" // the connection is the handler's
	Absent  AnswerKind = "501"       // an error that says why there is no such thing here
)

// Route is one row of the table. Only Read, Write, Ask and Remove make routes, and they have no form without a
// capability or a description.
type Route struct {
	Methods []string // the first is the usual one
	Pattern string   // with its parameters in braces
	AnyOf   auth.CapabilitySet
	Answer  AnswerKind
	Doc     string // what it answers or does, in one line

	handle         Handler
	flags          []string
	maxBody        int64 // of a request; 0 for the usual ceiling
	detail         recordDetail
	evenUnrecorded bool
	asks           bool // changes nothing, whatever its method
}

// recordDetail returns the record of a request with more details, from the query and the namespace of its variable, if
// that is known; nil adds none.
type recordDetail func(record auth.Record, namespace string, query url.Values) auth.Record

// mutates reports whether the route may change something, so that its requests are recorded.
func (r *Route) mutates() bool {
	return r.Answer != Absent && !r.asks && (r.Methods[0] != http.MethodGet || r.Answer == Upgrade)
}

// AnyMethod has the methods of all routes.
var AnyMethod = []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete}

// Read returns a route that changes nothing.
func Read(pattern string, needs auth.Capability, handle Handler, doc string) Route {
	return New([]string{http.MethodGet, http.MethodHead}, pattern, needs, handle, doc)
}

// Ask returns a route that changes nothing, for a question that is too long for a path.
func Ask(pattern string, needs auth.Capability, handle Handler, doc string) Route {
	r := Write(pattern, needs, handle, doc)
	r.asks = true
	return r
}

// Write returns a route that changes something. Nomad takes PUT and POST for each other.
func Write(pattern string, needs auth.Capability, handle Handler, doc string) Route {
	return New([]string{http.MethodPut, http.MethodPost}, pattern, needs, handle, doc)
}

// Remove returns a route that changes something by DELETE.
func Remove(pattern string, needs auth.Capability, handle Handler, doc string) Route {
	return New([]string{http.MethodDelete}, pattern, needs, handle, doc)
}

// New returns a route of any methods.
func New(methods []string, pattern string, needs auth.Capability, handle Handler, doc string) Route {
	if needs == 0 || handle == nil || doc == "" {
		panic("handlers: the route " + pattern + " lacks a capability, a handler or a description")
	}
	anyOf := auth.CapabilitySet(needs)
	return Route{Methods: methods, Pattern: pattern, AnyOf: anyOf, Answer: JSON, Doc: doc, handle: handle}
}

// Answering returns the route with answers of another kind than JSON.
func (r Route) Answering(kind AnswerKind) Route {
	r.Answer = kind
	return r
}

// Or returns the route for callers who have another capability instead, too.
func (r Route) Or(other auth.Capability) Route {
	r.AnyOf = r.AnyOf.With(other)
	return r
}

// WithBody returns the route for requests with a larger body than usual.
func (r Route) WithBody(most int64) Route {
	r.maxBody = most
	return r
}

// Flags returns the route for requests with these true-or-false parameters.
func (r Route) Flags(names ...string) Route {
	r.flags = names
	return r
}

// Given returns the route. It answers with the error if a dependency of its handler is missing.
func (r Route) Given(there bool, otherwise apierror.Kind, args ...any) Route {
	if !there {
		r.handle = func(context.Context, *Request) (Answer, error) { return Answer{}, apierror.New(otherwise, args...) }
	}
	return r
}

// Wrapped returns the route with another handler in place of its own.
func (r Route) Wrapped(wrap func(own Handler) Handler) Route {
	r.handle = wrap(r.handle)
	return r
}

// OnAlloc returns a handler for a path that names an allocation, as the interface of a resource. Errors: those of
// Request.Alloc, NoRoute for an allocation without it.
func OnAlloc[T any](
	unknown apierror.Kind, handle func(ctx context.Context, r *Request, alloc T) (Answer, error),
) Handler {
	return func(ctx context.Context, r *Request) (Answer, error) {
		alloc, err := Resource[T](r, unknown)
		if err != nil {
			return Answer{}, err
		}
		return handle(ctx, r, alloc)
	}
}

// Decoded returns a handler that gets the body, read as Request.Decode does.
func Decoded[T any](
	optional bool, handle func(ctx context.Context, r *Request, want *T) (Answer, error),
) Handler {
	return func(ctx context.Context, r *Request) (Answer, error) {
		want := new(T)
		if err := r.Decode(want, optional); err != nil {
			return Answer{}, err
		}
		return handle(ctx, r, want)
	}
}

// AlsoBy returns the route for another method, too: the SDK sends GET for some actions. HEAD is refused for those.
func (r Route) AlsoBy(method string) Route {
	r.Methods = append(slices.Clone(r.Methods), method)
	return r
}

// Recording returns the route with more in the records of its requests.
func (r Route) Recording(detail recordDetail) Route {
	r.detail = detail
	return r
}

// WithoutRecord returns a route that the operator may use even when no audit record can be written.
func (r Route) WithoutRecord() Route {
	r.evenUnrecorded = true
	return r
}

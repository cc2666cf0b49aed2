package route

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	pathpkg "path"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// Router finds the rows of requests in a table, and chi does the work. All servers of a process use one, each with a
// table of its own that differs in nothing but handlers.
type Router struct {
	mux  *chi.Mux
	rows []Route
}

// NewRouter returns a router for a table.
func NewRouter(table []Route) *Router {
	rt := &Router{mux: chi.NewMux(), rows: table}
	rt.mux.NotFound(rt.notFound)
	rt.mux.MethodNotAllowed(rt.notFound)
	for i, row := range table {
		if rest, ok := strings.CutPrefix(row.Pattern, jobPrefix); ok && strings.Count(rest, "/") > mostBelow {
			panic("route: " + row.Pattern + " has more segments than escapeJob tries")
		}
		for _, method := range row.Methods {
			rt.mux.MethodFunc(method, row.Pattern, func(_ http.ResponseWriter, r *http.Request) {
				req := requestOf(r)
				req.socket.routed(req, &req.socket.rows[i])
			})
		}
	}
	return rt
}

// requestKey is the key of a connection's *Request in the context of its requests.
type requestKey struct{}

func requestOf(r *http.Request) *Request { return r.Context().Value(requestKey{}).(*Request) }

// connContext gives all requests of a connection one Request and one context of chi's, which would clone each request
// for a context of its own.
func connContext(ctx context.Context) context.Context {
	return context.WithValue(context.WithValue(ctx, requestKey{}, new(Request)), chi.RouteCtxKey, chi.NewRouteContext())
}

// serve calls routed for the route of an escaped, uncleaned path, or answers that there is none.
func (rt *Router) serve(w http.ResponseWriter, r *http.Request, path string) {
	routing := chi.RouteContext(r.Context())
	routing.Reset() // the connection's last request has left its own there
	routing.RoutePath = path
	rt.mux.ServeHTTP(w, r)
}

func (rt *Router) notFound(w http.ResponseWriter, r *http.Request) {
	path := chi.RouteContext(r.Context()).RoutePath
	if job := rt.escapeJob(path); job != path {
		rt.serve(w, r, job)
		return
	}
	kind := apierror.NoRoute
	if allow := slices.Collect(rt.allowed(path)); len(allow) > 0 {
		w.Header().Set("Allow", strings.Join(allow, ", "))
		kind = apierror.WrongMethod
	}
	req := requestOf(r)
	req.socket.fail(req, apierror.New(kind))
}

// allowed yields the methods that an escaped path takes.
func (rt *Router) allowed(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		scratch := chi.NewRouteContext()
		for _, method := range AnyMethod {
			scratch.Reset()
			if rt.mux.Match(scratch, method, path) && !yield(method) {
				return
			}
		}
	}
}

const (
	jobPrefix = "/v1/job/"
	mostBelow = 3 // segments that a route has behind a job's ID; escapeJob tries no others
)

// escapeJob returns a path with the slashes of a job's ID escaped. They may also be sent unescaped, as in Nomad: the ID
// ends at the first slash behind which the path has a route.
func (rt *Router) escapeJob(path string) string {
	rest, ok := strings.CutPrefix(path, jobPrefix)
	if decoded, err := url.PathUnescape(rest); !ok || err != nil || pathpkg.Clean("/"+decoded) != "/"+decoded {
		return path
	}
	slashes := strings.Count(rest, "/")
	for below := min(mostBelow, slashes); below >= 0; below-- {
		escaped := jobPrefix + strings.Replace(rest, "/", "%2F", slashes-below)
		for range rt.allowed(escaped) {
			return escaped
		}
	}
	return path
}

// find returns the route for an escaped, uncleaned path; nil for none.
func (rt *Router) find(method, path string) *Route {
	pattern := rt.mux.Find(chi.NewRouteContext(), method, rt.escapeJob(path))
	for i, row := range rt.rows {
		if row.Pattern == pattern && slices.Contains(row.Methods, method) {
			return &rt.rows[i]
		}
	}
	return nil
}

// Detail returns the record of a request with the details that its route adds. The escaped paths are readings of the
// same request: the first one whose route adds details counts.
func (rt *Router) Detail(record auth.Record, method, namespace string, query url.Values, paths ...string) auth.Record {
	for _, path := range paths {
		if row := rt.find(method, path); row != nil && row.detail != nil {
			return row.detail(record, namespace, query)
		}
	}
	return record
}

// Needs returns the capabilities of which a request for the escaped path needs one. A route that is absent, and a path
// that has none, need those of the operator: no policy gives a right to them.
func (rt *Router) Needs(method, path string) auth.CapabilitySet {
	if row := rt.find(method, path); row != nil && row.Answer != Absent {
		return row.AnyOf
	}
	return auth.CapabilitySet(auth.OperatorOnly)
}

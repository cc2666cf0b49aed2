package route

import (
	"net/http"
	"net/url"
	pathpkg "path"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"taskapi/auth"
)

// Router finds the route of a request. It has the rows of a table without their handlers, and nothing of an allocation:
// all servers of a process use one, each with handlers of its own. chi matches the path and keeps the parameters. Its
// ServeHTTP is not used, because it clones every request for a context that nothing here needs.
type Router struct {
	mux     *chi.Mux
	rows    []Route // without their handlers
	at      map[routeKey]int
	methods []string // of all routes
}

type routeKey struct{ method, pattern string }

// NewRouter returns a router for a table.
func NewRouter(table []Route) *Router {
	rt := &Router{mux: chi.NewMux(), rows: slices.Clone(table), at: make(map[routeKey]int, len(table))}
	for i, row := range table {
		rt.rows[i].handle = nil
		for _, method := range row.Methods {
			rt.mux.MethodFunc(method, row.Pattern, func(http.ResponseWriter, *http.Request) {})
			rt.at[routeKey{method, row.Pattern}] = i
			if rest, ok := strings.CutPrefix(row.Pattern, jobPrefix); ok && strings.Count(rest, "/") > mostBelow {
				panic("route: " + row.Pattern + " has more segments than find tries")
			}
			if !slices.Contains(rt.methods, method) {
				rt.methods = append(rt.methods, method)
			}
		}
	}
	return rt
}

// handlers returns the handlers of a table, by row. It panics when the table has other routes than the router.
func (rt *Router) handlers(table []Route) []Handler {
	same := func(a, b Route) bool {
		return a.Pattern == b.Pattern && slices.Equal(a.Methods, b.Methods) && slices.Equal(a.flags, b.flags) &&
			a.AnyOf == b.AnyOf && a.Answer == b.Answer && a.maxBody == b.maxBody && a.asks == b.asks &&
			a.evenUnrecorded == b.evenUnrecorded && (a.detail == nil) == (b.detail == nil)
	}
	if !slices.EqualFunc(rt.rows, table, same) {
		panic("route: the router is that of another table")
	}
	all := make([]Handler, len(table))
	for i, row := range table {
		all[i] = row.handle
	}
	return all
}

// find returns the row of the route for a method and an escaped path, uncleaned, with the parameters left in scratch.
// Without a route the row is -1, and allow lists the methods that the path does take; it is empty when the path takes
// none. The ID of a job may have slashes that are not escaped, as Nomad reads it: the ID ends at the first slash behind
// which the path has a route.
func (rt *Router) find(scratch *chi.Context, method, path string) (row int, allow []string) {
	if row, allow = rt.match(scratch, method, path); row >= 0 || len(allow) > 0 {
		return row, allow
	}
	rest, ok := strings.CutPrefix(path, jobPrefix)
	if decoded, err := url.PathUnescape(rest); !ok || err != nil || pathpkg.Clean("/"+decoded) != "/"+decoded {
		return -1, nil
	}
	slashes := strings.Count(rest, "/")
	for below := min(mostBelow, slashes-1); below >= 0; below-- {
		scratch.Reset()
		row, allow = rt.match(scratch, method, jobPrefix+strings.Replace(rest, "/", "%2F", slashes-below))
		if row >= 0 || len(allow) > 0 {
			return row, allow
		}
	}
	return -1, nil
}

const (
	jobPrefix = "/v1/job/"
	mostBelow = 3 // segments that a route has behind a job's ID; find tries no others
)

// match is find for a path whose parameters have no slash.
func (rt *Router) match(scratch *chi.Context, method, path string) (row int, allow []string) {
	get := method
	if method == http.MethodHead {
		get = http.MethodGet
	}
	if pattern := rt.mux.Find(scratch, get, path); pattern != "" {
		if row = rt.at[routeKey{get, pattern}]; method != http.MethodHead || !rt.rows[row].mutates() {
			return row, nil
		}
		return -1, rt.rows[row].Methods
	}
	for _, other := range rt.methods {
		scratch.Reset()
		if rt.mux.Find(scratch, other, path) != "" {
			allow = append(allow, other)
		}
	}
	if slices.Contains(allow, http.MethodGet) {
		allow = append(allow, http.MethodHead)
	}
	return -1, allow
}

// Detail returns the record of a request for the escaped path with what its route adds to it, and whether the route
// adds something.
func (rt *Router) Detail(
	record auth.Record, method, path, namespace string, query url.Values,
) (more auth.Record, ok bool) {
	row, _ := rt.find(chi.NewRouteContext(), method, path)
	if row < 0 || rt.rows[row].detail == nil {
		return record, false
	}
	return rt.rows[row].detail(record, namespace, query), true
}

// Needs returns the capabilities of which a request for the escaped path needs one, and whether there is a route for
// it. A route that is absent needs those of the operator: no policy gives a right to it.
func (rt *Router) Needs(method, path string) (anyOf auth.CapabilitySet, ok bool) {
	row, _ := rt.find(chi.NewRouteContext(), method, path)
	switch {
	case row < 0:
		return 0, false
	case rt.rows[row].Answer == Absent:
		return auth.CapabilitySet(auth.OperatorOnly), true
	}
	return rt.rows[row].AnyOf, true
}

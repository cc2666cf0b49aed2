package route

import (
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"
)

// router finds the route of a request. chi matches the path and keeps the parameters. Its ServeHTTP is not used,
// because it clones every request for a context that nothing here needs.
type router struct {
	mux     *chi.Mux
	routes  map[routeKey]*Route
	methods []string // of all routes
}

type routeKey struct{ method, pattern string }

func newRouter(table []Route) *router {
	rt := &router{mux: chi.NewMux(), routes: make(map[routeKey]*Route, len(table))}
	for i, route := range table {
		for _, method := range route.Methods {
			rt.mux.MethodFunc(method, route.Pattern, func(http.ResponseWriter, *http.Request) {})
			rt.routes[routeKey{method, route.Pattern}] = &table[i]
			if !slices.Contains(rt.methods, method) {
				rt.methods = append(rt.methods, method)
			}
		}
	}
	return rt
}

// find returns the route for a method and an uncleaned path, with the parameters left in scratch. Without a route,
// allow lists the methods that the path does take; it is empty when the path takes none.
func (rt *router) find(scratch *chi.Context, method, path string) (found *Route, allow []string) {
	get := method
	if method == http.MethodHead {
		get = http.MethodGet
	}
	if pattern := rt.mux.Find(scratch, get, path); pattern != "" {
		if found = rt.routes[routeKey{get, pattern}]; method != http.MethodHead || !found.mutates() {
			return found, nil
		}
		return nil, found.Methods
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
	return nil, allow
}

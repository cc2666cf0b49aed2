package handlers

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// handlerFunc answers one request. Its error is mapped to a status in one place; see apierror.
type handlerFunc func(ctx context.Context, r *request) (answer, error)

// route is one row of the table. Rows are made by row alone, which has no form without a capability.
type route struct {
	methods    []string
	pattern    string
	capability auth.Capability
	handle     handlerFunc
	maxBody    int64 // of a request; 0 for the usual ceiling
	always     bool  // the operator may do it even when no record of it can be kept
}

// mutates reports that the route changes something, so that what comes of it is recorded.
func (r *route) mutates() bool { return r.methods[0] != http.MethodGet }

// The methods of a row. A row that reads answers HEAD, too; Nomad takes PUT and POST for each other wherever it changes something.
var (
	read  = []string{http.MethodGet}
	write = []string{http.MethodPut, http.MethodPost}
)

func newRoute(methods []string, pattern string, needs auth.Capability, handle handlerFunc) route {
	if len(methods) == 0 || needs == 0 || handle == nil {
		panic("handlers: the row of " + pattern + " lacks a method, a capability or a handler")
	}
	return route{methods: methods, pattern: pattern, capability: needs, handle: handle}
}

// taking is the row for requests with a larger body than usual.
func (r route) taking(maxBody int64) route {
	r.maxBody = maxBody
	return r
}

// evenUnrecorded is the row for what nothing may keep the operator from.
func (r route) evenUnrecorded() route {
	r.always = true
	return r
}

// table is every route there is.
func (a *API) table() []route {
	return []route{
		newRoute(read, "/v1/agent/health", auth.Authenticated, a.agentHealth),
		newRoute(read, "/v1/agent/self", auth.Authenticated, a.agentSelf),
		newRoute(read, "/v1/status/leader", auth.Authenticated, a.statusLeader),

		newRoute(read, "/v1/allocations", auth.ReadJob, a.allocationList),
		newRoute(read, "/v1/allocation/{alloc}", auth.ReadJob, a.allocationGet),
		newRoute(read, "/v1/allocation/{alloc}/checks", auth.ReadJob, a.allocationChecks),
		newRoute(write, "/v1/allocation/{alloc}/stop", auth.AllocLifecycle, a.stop).evenUnrecorded(),

		newRoute(read, "/v1/client/allocation/{alloc}/checks", auth.ReadJob, a.clientChecks),
		newRoute(write, "/v1/client/allocation/{alloc}/restart", auth.AllocLifecycle, a.restart),
		newRoute(write, "/v1/client/allocation/{alloc}/signal", auth.AllocLifecycle, a.signal),

		newRoute(read, "/v1/jobs", auth.ReadJob, a.jobList),
		newRoute(write, "/v1/jobs", auth.OperatorOnly, a.register).taking(maxJob),
		newRoute(read, "/v1/job/{job}", auth.ReadJob, a.jobGet),
		newRoute(write, "/v1/job/{job}/plan", auth.OperatorOnly, a.plan).taking(maxJob),

		newRoute(read, "/v1/evaluation/{eval}", auth.ReadJob, a.evaluationGet),
		newRoute(read, "/v1/evaluation/{eval}/allocations", auth.ReadJob, a.evaluationAllocations),

		newRoute(read, "/v1/event/stream", auth.ReadJob, a.eventStream),

		newRoute(read, "/v1/acl/token/self", auth.OperatorOnly, a.tokenSelf),
		newRoute(read, "/v1/acl/whoami", auth.Authenticated, a.whoami),
		newRoute(read, "/v1/metrics", auth.OperatorOnly, a.metrics),

		newRoute(read, "/.well-known/jwks.json", auth.Authenticated, a.jwks),
		newRoute(read, "/.well-known/openid-configuration", auth.Authenticated, a.openIDConfiguration),
	}
}

// router finds the row of a request. chi matches the path and keeps the parameters; its ServeHTTP is not used, because it
// clones every request for a context that nothing here needs.
type router struct {
	mux  *chi.Mux
	rows map[rowKey]*route
}

type rowKey struct{ method, pattern string }

func newRouter(table []route) *router {
	rt := &router{mux: chi.NewMux(), rows: make(map[rowKey]*route, len(table))}
	for i := range table {
		for _, method := range table[i].methods {
			rt.mux.MethodFunc(method, table[i].pattern, func(http.ResponseWriter, *http.Request) {})
			rt.rows[rowKey{method, table[i].pattern}] = &table[i]
		}
	}
	return rt
}

// find is the row for a method and an uncleaned path, with the parameters left in scratch. Without a row allow lists the methods
// that the path does take; it is empty when the path takes none.
func (rt *router) find(scratch *chi.Context, method, path string) (found *route, allow []string) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if pattern := rt.mux.Find(scratch, method, path); pattern != "" {
		return rt.rows[rowKey{method, pattern}], nil
	}
	for _, other := range slices.Concat(read, write) {
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

// noRoute is the error for a request without a row.
func noRoute(w http.ResponseWriter, allow []string) error {
	if len(allow) == 0 {
		return apierror.New(apierror.NoRoute)
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	return apierror.New(apierror.WrongMethod)
}

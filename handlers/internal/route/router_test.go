package route

import (
	"net/http"
	"slices"
	"testing"

	"github.com/go-chi/chi/v5"

	"taskapi/auth"
)

// TestJobIDWithSlashes: the slashes of a job's ID may be escaped or not, and no other part of a path may have more.
func TestJobIDWithSlashes(t *testing.T) {
	none := Constant(nil)
	rt := NewRouter([]Route{
		Read("/v1/job/{job}", auth.ReadJob, none, "Tests."),
		Read("/v1/job/{job}/allocations", auth.ReadJob, none, "Tests."),
		Write("/v1/job/{job}/plan", auth.ReadJob, none, "Tests."),
		Read("/v1/job/{job}/versions/{name}/tag", auth.ReadJob, none, "Tests."),
		Read("/v1/allocation/{alloc}", auth.ReadJob, none, "Tests."),
	})
	const child = "web/dispatch-1790000000-1f2e3d4c"
	for _, c := range []struct{ method, path, pattern, job string }{
		{"GET", "/v1/job/web", "/v1/job/{job}", "web"},
		{"GET", "/v1/job/" + child, "/v1/job/{job}", child},
		{"GET", "/v1/job/web%2Fdispatch-1790000000-1f2e3d4c", "/v1/job/{job}", child},
		{"HEAD", "/v1/job/" + child + "/allocations", "/v1/job/{job}/allocations", child},
		{"PUT", "/v1/job/" + child + "/plan", "/v1/job/{job}/plan", child},
		{"GET", "/v1/job/a/b/c%2Fd/versions/stable/tag", "/v1/job/{job}/versions/{name}/tag", "a/b/c/d"},
		{"GET", "/v1/job/allocations/allocations", "/v1/job/{job}/allocations", "allocations"},
		{"GET", "/v1/job/" + child + "/plan", "", ""}, // the route takes another method
		{"GET", "/v1/job/a/b/c/d/e/f/g/h/i/j/k", "/v1/job/{job}", "a/b/c/d/e/f/g/h/i/j/k"},
		{"GET", "/v1/job/a/b/c/d/e/f/g/h/i/j/allocations", "/v1/job/{job}/allocations", "a/b/c/d/e/f/g/h/i/j"},
		{"GET", "/v1/job/a/b/c%2Fd/e/f/g/h/i/j/versions/x/tag", "/v1/job/{job}/versions/{name}/tag", "a/b/c/d/e/f/g/h/i/j"},
		{"GET", "/v1/job/../web", "", ""},
		{"GET", "/v1/job/%2e%2e/web", "", ""},
		{"GET", "/v1/job/a//web", "", ""},
		{"GET", "/v1/job/a/web/", "", ""},
		{"GET", "/v1/allocation/a/b", "", ""},
	} {
		routing := chi.NewRouteContext()
		pattern := rt.mux.Find(routing, c.method, rt.escapeJob(c.path))
		r := Request{Request: new(http.Request)}
		r.SetPathValue("job", routing.URLParam("job"))
		if got := r.Param("job"); pattern != c.pattern || pattern != "" && got != c.job {
			t.Errorf("%s %s has the route %q and the job %q, want %q and %q", c.method, c.path, pattern, got, c.pattern, c.job)
		}
	}
	allow := slices.Collect(rt.allowed(rt.escapeJob("/v1/job/" + child + "/plan")))
	if !slices.Equal(allow, []string{http.MethodPut, http.MethodPost}) {
		t.Errorf("the plan of a job with a slash allows %v", allow)
	}
}

package scrape

import (
	"context"
	"net/http"
	"strconv"

	"taskapi/handlers/apierror"
)

// Handler returns a handler of the measurements and of nothing else, for callers without a token: GET /metrics is
// Prometheus' text, and GET /v1/metrics is answered as on a socket. It refuses requests to hosts for which isLocal
// returns false; a nil isLocal refuses none.
func Handler(measure func(context.Context) []Metric, isLocal func(host string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		format := r.URL.Query().Get("format")
		switch r.URL.Path {
		case "/metrics":
			format = prometheus
		case "/v1/metrics":
		default:
			http.Error(w, "resource not found", http.StatusNotFound)
			return
		}
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "Invalid method", http.StatusMethodNotAllowed)
			return
		case isLocal != nil && !isLocal(r.Host):
			const why = "these measurements are for this machine: name it by an IP address, or as localhost"
			http.Error(w, why, http.StatusForbidden)
			return
		}
		content, contentType, err := Encode(r.Context(), measure, format)
		if err != nil {
			known := apierror.Of(err)
			http.Error(w, known.Message, known.Kind.Status())
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content) // net/http sends no body for HEAD
	})
}

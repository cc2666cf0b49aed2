package handlers

import (
	"context"
	"net"
	"net/http"
	"strings"

	"taskapi/handlers/apierror"
)

// Scrape returns a handler of the measurements and of nothing else, for callers without a token: GET /metrics is
// Prometheus' text, and /v1/metrics is answered as on a socket. It has none of the other routes. With localOnly it
// answers only requests that name this machine: see NamesThisMachine.
func Scrape(measure func(context.Context) []Metric, localOnly bool) http.Handler {
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
		case localOnly && !NamesThisMachine(r.Host):
			http.Error(w, "these measurements are for this machine: ask by an IP address, or as localhost", http.StatusForbidden)
			return
		}
		encoded, err := encodeMetrics(r.Context(), measure, format)
		if err != nil {
			known := apierror.Of(err)
			http.Error(w, known.Message, known.Kind.Status())
			return
		}
		answer{body: encoded}.write(w, http.StatusOK) // net/http sends no body for HEAD
	})
}

// NamesThisMachine reports whether a request's Host may be this machine: an IP address, or localhost. A web page whose
// own host name points here (DNS rebinding) names neither: browsers send that host name.
func NamesThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.EqualFold(host, "localhost") || net.ParseIP(strings.Trim(host, "[]")) != nil
}

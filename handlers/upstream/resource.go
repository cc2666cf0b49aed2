package upstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// How long a blocking query waits, as in Nomad.
const (
	defaultWait = 5 * time.Minute
	maxWait     = 10 * time.Minute
)

// waiting are the first segments of paths below /v1/ whose resources Nomad's servers answer, and on which a client can
// block. Other paths are passed on: an agent's and a node's, which change without an index, and what streams.
var waiting = []string{
	"jobs", "job", "allocations", "allocation", "evaluations", "evaluation", "deployments", "deployment", "nodes", "node",
	"services", "service", "vars", "var", "namespaces", "namespace", "volumes", "volume", "plugins", "plugin",
	"scaling",
}

// passedOn are the last segments of paths that begin like a resource and are none.
var passedOn = []string{"action", "actions", "submission", "parse", "statuses", "count", "snapshot", "plan"}

// isResource reports whether a GET of the escaped path may be answered from the cache.
func isResource(path string) bool {
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok {
		return false
	}
	parts := strings.Split(rest, "/")
	if !slices.Contains(waiting, parts[0]) || slices.Contains(parts, "") || slices.Contains(parts, ".") ||
		slices.Contains(parts, "..") { // Nomad redirects a path that is not clean
		return false
	}
	return parts[0] == "var" || len(parts) == 1 || !slices.Contains(passedOn, parts[len(parts)-1])
}

// isChange reports whether a request may change something. A GET may: Nomad restarts tasks and collects garbage by one,
// and a command begins with one. path is decoded, because Nomad looks for these words in the decoded path.
func isChange(method, path string) bool {
	switch method {
	case http.MethodGet, http.MethodHead:
		return path == "/v1/client/gc" || isCommand(path) || strings.HasPrefix(path, clientAllocation) &&
			(strings.HasSuffix(path, "/gc") || strings.HasSuffix(path, "/restart"))
	}
	switch path {
	case "/v1/search", "/v1/search/fuzzy", "/v1/jobs/parse", "/v1/jobs/statuses", "/v1/validate/job":
		return false
	}
	return !strings.HasPrefix(path, "/v1/job/") || !strings.HasSuffix(path, "/plan")
}

const clientAllocation = "/v1/client/allocation/"

// isCommand reports whether the decoded path is that of a command in a task, whose connection is upgraded.
func isCommand(path string) bool {
	return strings.HasPrefix(path, clientAllocation) && strings.HasSuffix(path, "/exec") ||
		strings.HasPrefix(path, "/v1/job/") && strings.HasSuffix(path, "/action")
}

// mostVariable is how long a variable may be in JSON. Nomad takes 64 KiB before it is written as JSON.
const mostVariable = 512 << 10

// namespaceOf returns the namespace of the variable that a request is about, as Nomad reads it: that in the body counts
// before the query's. It is empty for another request. Errors: the body's.
func namespaceOf(r *http.Request, query url.Values) (string, error) {
	if !strings.HasPrefix(r.URL.Path, "/v1/var/") {
		return "", nil
	}
	var variable struct{ Namespace string }
	if r.Method == http.MethodPut || r.Method == http.MethodPost {
		body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, mostVariable))
		if _, long := errors.AsType[*http.MaxBytesError](err); err != nil && !long {
			err = apierror.New(apierror.UndecodableBody, err)
		}
		if err != nil {
			return "", err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		_ = json.NewDecoder(bytes.NewReader(body)).Decode(&variable) // what can't be read here, Nomad refuses
	}
	return cmp.Or(variable.Namespace, query.Get("namespace"), api.DefaultNamespace), nil
}

// resource is what a read is about.
type resource struct {
	path  string // escaped
	query string // in one order, without index and wait
}

// read is a read of a resource.
type read struct {
	of    resource
	after uint64 // the index from which the caller waits for a change; 0: it does not wait
	wait  time.Duration
}

// readOf returns the read that a request is, and whether it is one that the cache answers. Every parameter but index
// and wait is a part of the resource: what one caller asks can't be the answer to another question. A consistent read
// is the agent's alone.
func readOf(path string, query url.Values) (q read, cached bool, err error) {
	q.of.path = path
	if len(query) == 0 {
		return q, true, nil
	}
	if query.Has("consistent") {
		return q, false, nil
	}
	if text := query.Get("index"); text != "" {
		if q.after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, false, apierror.New(apierror.Invalid, "index must be a whole number, as X-Nomad-Index gave it")
		}
	}
	q.wait = defaultWait
	if text := query.Get("wait"); text != "" {
		if q.wait, err = time.ParseDuration(text); err != nil || q.wait < 0 {
			return q, false, apierror.New(apierror.Invalid, "wait must be a duration such as 10s or 5m")
		}
		if q.wait == 0 {
			q.wait = defaultWait
		}
		q.wait = min(q.wait, maxWait)
	}
	query.Del("index")
	query.Del("wait")
	q.of.query = query.Encode()
	return q, true, nil
}

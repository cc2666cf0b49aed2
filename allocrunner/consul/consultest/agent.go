// Package consultest stands in for an agent of Consul in tests: it serves the part of its HTTP API that registers
// services and checks. It is stricter than the agent: it refuses unknown fields, parameters, methods and types of
// checks, and requests that need a token and have none. It makes HTTP, TCP and gRPC checks itself, and lets checks that
// are fed expire. No program imports it.
package consultest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	capi "github.com/hashicorp/consul/api"
	bexpr "github.com/hashicorp/go-bexpr"
)

var metaKey = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// maxBody is more than a service of tests has.
const maxBody = 1 << 20

// Agent stands in for an agent. Its methods may be called from several goroutines.
type Agent struct {
	URL string

	tb      testing.TB
	running sync.WaitGroup
	ctx     context.Context // of its checks

	mu       sync.Mutex          // guards the fields below
	acl      map[string][]string // names of the services that each token may write; nil while there are no ACLs
	params   map[string]string   // that every request must have
	services map[string]*capi.AgentService
	checks   map[string]*made
	requests []string
}

// made is a check that the agent makes, or that is fed.
type made struct {
	capi.AgentCheck
	definition capi.AgentServiceCheck
	token      string // of its registration
	published  string // its status in the catalog
	end        context.CancelFunc
	expiry     *time.Timer // of a check that is fed
	row        int         // results of one kind in a row: positive for those that have passed
}

// New starts an agent, which ends with the test.
func New(tb testing.TB) *Agent {
	tb.Helper()
	ctx, end := context.WithCancel(context.Background())
	a := &Agent{tb: tb, ctx: ctx, services: map[string]*capi.AgentService{}, checks: map[string]*made{}}
	server := httptest.NewServer(a)
	a.URL = server.URL
	tb.Cleanup(func() {
		server.Close()
		end()
		a.running.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.dropLocked(func(*made) bool { return true })
	})
	return a
}

// RequireNamespace makes the agent one of Consul Enterprise, which refuses every request that does not name this
// namespace and this partition.
func (a *Agent) RequireNamespace(namespace, partition string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.params = map[string]string{"ns": namespace, "partition": partition}
}

// Requests returns the method and the path of each request since the last call.
func (a *Agent) Requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.requests
	a.requests = nil
	return list
}

// routes are the methods, paths and parameters that there are. A path that ends with / takes an ID.
var routes = []struct {
	method, path string
	params       []string
	serve        func(a *Agent, id string, r *http.Request) (any, error)
}{
	{http.MethodGet, "/v1/agent/services", []string{"filter"}, (*Agent).listServices},
	{http.MethodGet, "/v1/agent/checks", []string{"filter"}, (*Agent).listChecks},
	{http.MethodGet, "/v1/agent/self", nil, func(*Agent, string, *http.Request) (any, error) {
		return map[string]map[string]any{"Config": {"NodeName": "node", "Datacenter": "dc1"}}, nil
	}},
	{http.MethodPut, "/v1/agent/service/register", []string{"replace-existing-checks"}, (*Agent).registerService},
	{http.MethodPut, "/v1/agent/service/deregister/", nil, (*Agent).deregisterService},
	{http.MethodPut, "/v1/agent/check/register", nil, (*Agent).registerCheck},
	{http.MethodPut, "/v1/agent/check/deregister/", nil, (*Agent).deregisterCheck},
	{http.MethodPut, "/v1/agent/check/update/", nil, (*Agent).updateCheck},
	{http.MethodPut, "/v1/catalog/register", nil, (*Agent).registerInCatalog},
	{http.MethodGet, "/v1/health/checks/", nil, (*Agent).listCatalog},
}

// failure is an answer that is an error.
type failure struct {
	status int
	words  string
}

func (f failure) Error() string { return f.words }

func invalid(format string, args ...any) error {
	return failure{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := a.answer(r)
	if err != nil {
		status := http.StatusInternalServerError
		if f, ok := err.(failure); ok { //nolint:errorlint // nothing wraps it
			status = f.status
		}
		http.Error(w, err.Error(), status)
		return
	}
	if answer != nil {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // the client has gone away
	}
}

func (a *Agent) answer(r *http.Request) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, r.Method+" "+r.URL.Path)
	token := tokenOf(r)
	if _, known := a.acl[token]; !known && a.acl != nil && token != "" {
		return nil, failure{http.StatusForbidden, "ACL not found"}
	}
	for _, route := range routes {
		id, ok := strings.CutPrefix(r.URL.Path, route.path)
		if !ok || (id == "") == strings.HasSuffix(route.path, "/") {
			continue
		}
		if r.Method != route.method {
			return nil, failure{http.StatusMethodNotAllowed, "method " + r.Method + " not allowed"}
		}
		for name, want := range a.params {
			if got := r.URL.Query().Get(name); got != want {
				return nil, invalid("%s is %q", name, got)
			}
		}
		for name := range r.URL.Query() {
			if _, ok := a.params[name]; !ok && !slices.Contains(route.params, name) {
				return nil, invalid("Invalid query parameter: %q", name)
			}
		}
		return route.serve(a, id, r)
	}
	return nil, failure{http.StatusNotFound, "no such path: " + r.URL.Path}
}

// decode reads a body that has nothing unknown in it.
func decode(r *http.Request, into any) error {
	body := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	body.DisallowUnknownFields()
	if err := body.Decode(into); err != nil {
		return invalid("Request decode failed: %v", err)
	}
	return nil
}

// filtered returns the values for which the request's filter is true.
func filtered[T any](r *http.Request, all map[string]T) (any, error) {
	expression := r.URL.Query().Get("filter")
	if expression == "" {
		return all, nil
	}
	filter, err := bexpr.CreateFilter(expression)
	if err != nil {
		return nil, invalid("Failed to create filter: %v", err)
	}
	found, err := filter.Execute(all)
	if err != nil {
		return nil, invalid("Failed to filter: %v", err)
	}
	return found, nil
}

func (a *Agent) listServices(_ string, r *http.Request) (any, error) {
	list := maps.Clone(a.services) // less what the token may not read
	maps.DeleteFunc(list, func(_ string, s *capi.AgentService) bool {
		return a.mayLocked(tokenOf(r),
			s.Service) != nil
	})
	return filtered(r, list)
}

func (a *Agent) listChecks(_ string, r *http.Request) (any, error) {
	list := make(map[string]*capi.AgentCheck, len(a.checks))
	for id, c := range a.checks {
		if a.mayLocked(tokenOf(r), c.ServiceName) == nil {
			list[id] = new(c.AgentCheck)
		}
	}
	return filtered(r, list)
}

func (a *Agent) registerService(_ string, r *http.Request) (any, error) {
	var reg capi.AgentServiceRegistration
	if err := decode(r, &reg); err != nil {
		return nil, err
	}
	if reg.Name == "" || reg.ID == "" {
		return nil, invalid("Missing service name or ID")
	}
	if ip := net.ParseIP(reg.Address); ip != nil && ip.IsUnspecified() {
		return nil, invalid("Invalid service address")
	}
	if w := reg.Weights; w != nil && (w.Passing < 1 || w.Passing > 65535 || w.Warning < 0 || w.Warning > 65535) {
		return nil, invalid("Invalid Weights: %+v", *w)
	}
	if reg.Namespace != a.params["ns"] || reg.Partition != a.params["partition"] {
		return nil, invalid("Namespaces and partitions are features of Consul Enterprise, where the body must agree with " +
			"the query")
	}
	if reg.Check != nil || reg.Kind != "" || reg.Connect != nil || reg.Proxy != nil {
		return nil, invalid("Only what a plain service has is expected")
	}
	for _, c := range reg.Checks {
		if err := checkDefinition(c); err != nil {
			return nil, err
		}
	}
	if len(reg.Meta) > 64 {
		return nil, invalid("Invalid Service Meta: Node metadata cannot contain more than 64 key/value pairs")
	}
	for key, value := range reg.Meta {
		if !metaKey.MatchString(key) || len(key) > 128 || len(value) > 512 || strings.HasPrefix(key, "consul-") {
			return nil, invalid("Invalid service metadata %q", key)
		}
	}
	addresses := maps.Clone(reg.TaggedAddresses)
	if addresses == nil {
		addresses = map[string]capi.ServiceAddress{}
	}
	for _, name := range []string{"lan_ipv4", "wan_ipv4"} { // as the agent does
		if _, ok := addresses[name]; !ok {
			addresses[name] = capi.ServiceAddress{Address: reg.Address, Port: reg.Port}
		}
	}
	if err := a.mayLocked(tokenOf(r), reg.Name); err != nil {
		return nil, err
	}
	if before := a.services[reg.ID]; before != nil && a.mayLocked(tokenOf(r), before.Service) != nil {
		return nil, a.mayLocked(tokenOf(r), before.Service)
	}
	a.services[reg.ID] = &capi.AgentService{
		ID: reg.ID, Service: reg.Name, Tags: reg.Tags, Meta: reg.Meta, Port: reg.Port, Address: reg.Address,
		TaggedAddresses: addresses,
		Weights: *cmp.Or(reg.Weights, &capi.AgentWeights{Passing: 1,
			Warning: 1}), EnableTagOverride: reg.EnableTagOverride, Datacenter: "dc1",
	}
	kept := map[string]bool{}
	for _, c := range reg.Checks {
		kept[c.CheckID] = true
		a.addLocked(c.CheckID, a.services[reg.ID], tokenOf(r), *c)
	}
	if r.URL.Query().Has("replace-existing-checks") {
		a.dropLocked(func(c *made) bool { return c.ServiceID == reg.ID && !kept[c.CheckID] })
	}
	return nil, nil
}

// dropLocked ends and removes the checks for which drop is true.
func (a *Agent) dropLocked(drop func(*made) bool) {
	maps.DeleteFunc(a.checks, func(_ string, c *made) bool {
		if !drop(c) {
			return false
		}
		c.stop()
		return true
	})
}

func (a *Agent) deregisterService(id string, r *http.Request) (any, error) {
	s := a.services[id]
	if s == nil {
		return nil, failure{http.StatusNotFound,
			fmt.Sprintf("Unknown service ID %q. Ensure that the service ID is passed, not the service name.", id)}
	}
	if err := a.mayLocked(tokenOf(r), s.Service); err != nil {
		return nil, err
	}
	delete(a.services, id)
	a.dropLocked(func(c *made) bool { return c.ServiceID == id })
	return nil, nil
}

// registerInCatalog takes other tags for a service whose registration allows that. Those of others the agent would put
// back.
func (a *Agent) registerInCatalog(_ string, r *http.Request) (any, error) {
	var reg capi.CatalogRegistration
	if err := decode(r, &reg); err != nil {
		return nil, err
	}
	if err := a.mayLocked(tokenOf(r), ""); err != nil {
		return nil, err
	}
	if reg.Service == nil || a.services[reg.Service.ID] == nil {
		return nil, invalid("there is no such service")
	}
	if s := a.services[reg.Service.ID]; s.EnableTagOverride {
		changed := *s
		changed.Tags = reg.Service.Tags
		a.services[s.ID] = &changed
	}
	return true, nil
}

// Package consultest stands in for an agent of Consul in tests: it serves the part of its HTTP API that registers
// services and checks, and the part that reads keys and services, with blocking queries. It is stricter than the agent:
// it refuses unknown fields, parameters, methods and types of checks, and requests that need a token and have none. It
// makes HTTP, TCP and gRPC checks itself, without TLS and thresholds, and lets checks that are fed expire. No program
// imports it.
package consultest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	capi "github.com/hashicorp/consul/api"
	bexpr "github.com/hashicorp/go-bexpr"
)

// Agent stands in for an agent. Its methods may be called from several goroutines.
type Agent struct {
	URL string

	running sync.WaitGroup

	mu       sync.Mutex          // guards the fields below
	acl      map[string][]string // names of the services that each token may write; nil while there are no ACLs
	params   map[string]string   // that every request must have
	pairs    map[string]*capi.KVPair
	index    uint64        // of the latest change
	changed  chan struct{} // closed at the next change, and replaced then
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
	expiry     *time.Timer // of a check that is fed; nil for one that the agent makes
}

// New starts an agent, which ends with the test.
func New(tb testing.TB) *Agent {
	tb.Helper()
	a := &Agent{services: map[string]*capi.AgentService{}, checks: map[string]*made{},
		pairs: map[string]*capi.KVPair{}, index: 1, changed: make(chan struct{})}
	mux := http.NewServeMux()
	for _, route := range routes {
		mux.HandleFunc(route.pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Consul-Index", strconv.FormatUint(a.await(r), 10))
			answer, err := a.answer(r, route.param, route.serve)
			switch err := err.(type) { //nolint:errorlint // nothing wraps it
			case nil:
				_ = json.NewEncoder(w).Encode(answer) // the client has gone away
			case failure:
				http.Error(w, err.words, err.status)
			default:
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		})
	}
	server := httptest.NewServer(mux)
	a.URL = server.URL
	tb.Cleanup(func() {
		server.Close()
		a.mu.Lock()
		a.dropLocked(func(*made) bool { return true })
		a.mu.Unlock()
		a.running.Wait()
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

// Status returns that of a check; empty for one that there is not.
func (a *Agent) Status(checkID string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return cmp.Or(a.checks[checkID], &made{}).Status
}

// routes are the requests that there are, each with the parameters that it may have.
var routes = []struct {
	pattern, param string
	serve          func(a *Agent, r *http.Request) (any, error)
}{
	{"GET /v1/agent/services", "filter", (*Agent).listServices},
	{"GET /v1/agent/checks", "filter", (*Agent).listChecks},
	{"GET /v1/agent/self", "", func(*Agent, *http.Request) (any, error) {
		return map[string]map[string]any{"Config": {"NodeName": "node", "Datacenter": "dc1"}}, nil
	}},
	{"PUT /v1/agent/service/register", "replace-existing-checks", (*Agent).registerService},
	{"PUT /v1/agent/service/deregister/{id}", "", (*Agent).deregisterService},
	{"PUT /v1/agent/check/register", "", (*Agent).registerCheck},
	{"PUT /v1/agent/check/deregister/{id}", "", (*Agent).deregisterCheck},
	{"PUT /v1/agent/check/update/{id}", "", (*Agent).updateCheck},
	{"PUT /v1/catalog/register", "", (*Agent).registerInCatalog},
	{"GET /v1/health/checks/{id}", "", (*Agent).listCatalog},
	{"GET /v1/health/service/{id}", "index wait passing tag dc", (*Agent).listHealth},
	{"GET /v1/catalog/services", "index wait dc", (*Agent).listNames},
	{"GET /v1/kv/{key...}", "index wait recurse dc", (*Agent).readKeys},
	{"PUT /v1/kv/{key...}", "", (*Agent).putKey},
	{"DELETE /v1/kv/{key...}", "", (*Agent).deleteKey},
}

// failure is an error with a status of its own. Other errors say that a request is invalid.
type failure struct {
	status int
	words  string
}

func (f failure) Error() string { return f.words }

func (a *Agent) answer(
	r *http.Request, param string, serve func(a *Agent, r *http.Request) (any, error),
) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, r.Method+" "+r.URL.Path)
	token := tokenOf(r)
	if _, known := a.acl[token]; !known && a.acl != nil && token != "" {
		return nil, failure{http.StatusForbidden, "ACL not found"}
	}
	for name, want := range a.params {
		if got := r.URL.Query().Get(name); got != want {
			return nil, fmt.Errorf("%s is %q", name, got)
		}
	}
	for name := range r.URL.Query() {
		if _, ok := a.params[name]; !ok && !slices.Contains(strings.Fields(param), name) {
			return nil, fmt.Errorf("invalid query parameter: %q", name)
		}
	}
	if r.Method != http.MethodGet {
		defer a.changeLocked()
	}
	return serve(a, r)
}

// decode reads a body that has nothing unknown in it.
func decode(r *http.Request, into any) error {
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	return body.Decode(into)
}

// filtered returns the values for which the request's filter is true.
func filtered[T any](r *http.Request, all map[string]T) (any, error) {
	expression := r.URL.Query().Get("filter")
	if expression == "" {
		return all, nil
	}
	filter, err := bexpr.CreateFilter(expression)
	if err != nil {
		return nil, err
	}
	return filter.Execute(all)
}

func (a *Agent) listServices(r *http.Request) (any, error) {
	list := maps.Clone(a.services) // less what the token may not read
	maps.DeleteFunc(list, func(_ string, s *capi.AgentService) bool { return a.mayLocked(tokenOf(r), s.Service) != nil })
	return filtered(r, list)
}

func (a *Agent) listChecks(r *http.Request) (any, error) {
	list := map[string]*capi.AgentCheck{}
	for id, c := range a.checks {
		if a.mayLocked(tokenOf(r), c.ServiceName) == nil {
			list[id] = new(c.AgentCheck)
		}
	}
	return filtered(r, list)
}

func (a *Agent) registerService(r *http.Request) (any, error) {
	var reg capi.AgentServiceRegistration
	if err := decode(r, &reg); err != nil {
		return nil, err
	}
	before := cmp.Or(a.services[reg.ID], &capi.AgentService{Service: reg.Name})
	for _, name := range []string{reg.Name, before.Service} {
		if err := a.mayLocked(tokenOf(r), name); err != nil {
			return nil, err
		}
	}
	switch {
	case reg.Name == "" || reg.ID == "":
		return nil, errors.New("missing service name or ID")
	case reg.Namespace != a.params["ns"] || reg.Partition != a.params["partition"]:
		return nil, errors.New("the body must agree with the query about namespace and partition")
	case reg.Check != nil || reg.Kind != "" || reg.Connect != nil || reg.Proxy != nil:
		return nil, errors.New("only what a plain service has is expected")
	}
	for _, c := range reg.Checks {
		if err := checkDefinition(c); err != nil {
			return nil, err
		}
	}
	addresses := map[string]capi.ServiceAddress{} // the first two as the agent adds them
	for _, name := range []string{"lan_ipv4", "wan_ipv4"} {
		addresses[name] = capi.ServiceAddress{Address: reg.Address, Port: reg.Port}
	}
	maps.Copy(addresses, reg.TaggedAddresses)
	a.services[reg.ID] = &capi.AgentService{
		ID: reg.ID, Service: reg.Name, Tags: reg.Tags, Meta: reg.Meta, Port: reg.Port, Address: reg.Address,
		TaggedAddresses: addresses, EnableTagOverride: reg.EnableTagOverride, Datacenter: "dc1",
		Weights: *cmp.Or(reg.Weights, &capi.AgentWeights{Passing: 1, Warning: 1}),
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
		c.end()
		return true
	})
}

func (a *Agent) deregisterService(r *http.Request) (any, error) {
	id := r.PathValue("id")
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
func (a *Agent) registerInCatalog(r *http.Request) (any, error) {
	var reg capi.CatalogRegistration
	if err := decode(r, &reg); err != nil {
		return nil, err
	}
	if err := a.mayLocked(tokenOf(r), ""); err != nil {
		return nil, err
	}
	if s := a.services[reg.Service.ID]; s.EnableTagOverride {
		changed := *s
		changed.Tags = reg.Service.Tags
		a.services[s.ID] = &changed
	}
	return true, nil
}

// listCatalog returns the checks of the services with a name, as the catalog has them. A caller who may not read a
// service sees none of its checks.
func (a *Agent) listCatalog(r *http.Request) (any, error) {
	name, list := r.PathValue("id"), capi.HealthChecks{}
	for _, id := range slices.Sorted(maps.Keys(a.checks)) {
		c := a.checks[id]
		if c.ServiceName == name && c.published != "" && a.mayLocked(tokenOf(r), name) == nil {
			list = append(list, &capi.HealthCheck{Node: c.Node, CheckID: id, Name: c.Name, ServiceID: c.ServiceID,
				ServiceName: name, Status: c.published})
		}
	}
	return list, nil
}

package consultest

import (
	"cmp"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
)

// changeLocked ends the requests that wait for a change.
func (a *Agent) changeLocked() {
	a.index++
	close(a.changed)
	a.changed = make(chan struct{})
}

// await waits until the index is not the one that a request names, but not longer than the request says. It returns the
// index. As in Consul's catalog, any change may end the wait.
func (a *Agent) await(r *http.Request) uint64 {
	known, err := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	limit := time.After(duration(r.URL.Query().Get("wait")))
	for {
		a.mu.Lock()
		index, changed := a.index, a.changed
		a.mu.Unlock()
		if err != nil || known == 0 || index > known {
			return index
		}
		select {
		case <-changed:
		case <-limit:
			return index
		case <-r.Context().Done():
			return index
		}
	}
}

// mayReadLocked refuses a token that is none of the agent's: the rules of keys are not looked at.
func (a *Agent) mayReadLocked(r *http.Request) error {
	if _, known := a.acl[tokenOf(r)]; a.acl != nil && !known {
		return failure{http.StatusForbidden, "Permission denied: anonymous token lacks permission 'key:read'"}
	}
	return nil
}

func (a *Agent) readKeys(r *http.Request) (any, error) {
	if err := a.mayReadLocked(r); err != nil {
		return nil, err
	}
	key := r.PathValue("key")
	var found capi.KVPairs
	for _, name := range slices.Sorted(maps.Keys(a.pairs)) {
		if name == key || r.URL.Query().Has("recurse") && strings.HasPrefix(name, key) {
			found = append(found, a.pairs[name])
		}
	}
	if found == nil {
		return nil, failure{http.StatusNotFound, ""}
	}
	return found, nil
}

func (a *Agent) putKey(r *http.Request) (any, error) {
	value, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	key := r.PathValue("key")
	created := cmp.Or(a.pairs[key], &capi.KVPair{CreateIndex: a.index + 1}).CreateIndex
	a.pairs[key] = &capi.KVPair{Key: key, Value: value, CreateIndex: created, ModifyIndex: a.index + 1}
	return true, nil
}

func (a *Agent) deleteKey(r *http.Request) (any, error) {
	delete(a.pairs, r.PathValue("key"))
	return true, nil
}

// listHealth returns the instances of a service. A caller who may not read it sees none.
func (a *Agent) listHealth(r *http.Request) (any, error) {
	name, query, list := r.PathValue("id"), r.URL.Query(), []*capi.ServiceEntry{}
	for _, id := range slices.Sorted(maps.Keys(a.services)) {
		s := a.services[id]
		if s.Service != name || a.mayLocked(tokenOf(r), name) != nil ||
			query.Has("tag") && !slices.Contains(s.Tags, query.Get("tag")) {
			continue
		}
		e := &capi.ServiceEntry{Node: &capi.Node{Node: "node", Address: "127.0.0.9"}, Service: s}
		for _, c := range a.checks {
			if c.ServiceID == id && c.published != "" {
				e.Checks = append(e.Checks, &capi.HealthCheck{Node: "node", CheckID: c.CheckID, Name: c.Name,
					ServiceID: id, ServiceName: name, Status: c.published})
			}
		}
		if !query.Has("passing") || e.Checks.AggregatedStatus() == capi.HealthPassing {
			list = append(list, e)
		}
	}
	return list, nil
}

func (a *Agent) listNames(r *http.Request) (any, error) {
	names := map[string][]string{"consul": {}}
	for _, s := range a.services {
		if a.mayLocked(tokenOf(r), s.Service) == nil {
			names[s.Service] = append(names[s.Service], s.Tags...)
		}
	}
	return names, nil
}

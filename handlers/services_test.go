package handlers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/internal/must"
)

// fakeServices is a registry in memory.
type fakeServices struct {
	mu      sync.Mutex // guards the fields below
	all     []*api.ServiceRegistration
	indexes map[string]uint64 // by name: when it has changed last
	index   uint64
	changed chan struct{} // closed, and replaced, with every change

	waits chan struct{} // gets a value whenever a call of Wait begins to wait
}

func newFakeServices(all ...*api.ServiceRegistration) *fakeServices {
	return &fakeServices{all: all, index: 40, indexes: map[string]uint64{}, changed: make(chan struct{}),
		waits: make(chan struct{}, 100)}
}

func (f *fakeServices) Services(_ context.Context, namespace, name string) ([]*api.ServiceRegistration, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []*api.ServiceRegistration
	for _, s := range f.all {
		if (namespace == "" || s.Namespace == namespace) && (name == "" || s.ServiceName == name) {
			found = append(found, s)
		}
	}
	return found, f.index, nil
}

func (f *fakeServices) Wait(ctx context.Context, _, name string, index uint64) error {
	for {
		f.mu.Lock()
		latest, changed := f.indexes[name], f.changed
		if name == "" {
			latest = f.index
		}
		f.mu.Unlock()
		if latest > index {
			return nil
		}
		f.waits <- struct{}{}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *fakeServices) Deregister(_ context.Context, namespace, name, id string) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.all {
		if s.Namespace == namespace && s.ServiceName == name && s.ID == id {
			f.all = slices.Delete(f.all, i, i+1)
			return f.notedLocked(name), nil
		}
	}
	return 0, fmt.Errorf("remove: %w", registry.ErrNotFound)
}

func (f *fakeServices) put(s *api.ServiceRegistration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, s)
	f.notedLocked(s.ServiceName)
}

func (f *fakeServices) notedLocked(name string) uint64 {
	f.index++
	f.indexes[name] = f.index
	close(f.changed)
	f.changed = make(chan struct{})
	return f.index
}

// stayingServices says that it removes what it is asked to.
type stayingServices struct{ *fakeServices }

func (stayingServices) Deregister(context.Context, string, string, string) (uint64, error) {
	return 41, nil
}

// serving returns the change of a server that has the services.
func serving(f *fakeServices) func(*handlers.Config) {
	return func(c *handlers.Config) { c.Services = f }
}

// instance returns a registration of an allocation of the callers' job.
func instance(namespace, name, alloc string, port int, tags ...string) *api.ServiceRegistration {
	return &api.ServiceRegistration{
		ID: "_nomad-task-" + alloc + "-group-web-" + name +
			"-http", ServiceName: name, Namespace: namespace, NodeID: otherID, Datacenter: "dc1",
		JobID: "demo", AllocID: alloc, Tags: append([]string{},
			tags...), Address: "127.0.0.1", Port: port, CreateIndex: 7, ModifyIndex: 9,
	}
}

// threeServices has a service of two allocations, one of another job, and one of another namespace.
func threeServices() *fakeServices {
	foreign := instance("default", "cache", otherID, 6379)
	foreign.JobID = "redis"
	return newFakeServices(
		instance("default", "web", otherID, 8081, "blue", "http"), instance("default", "web", allocID, 8080, "http", "green"),
		foreign, instance("prod", "db", otherID, 5432, "primary"),
	)
}

func TestSDKServices(t *testing.T) {
	s := newServer(t, newAlloc(t), serving(threeServices()))
	client := s.sdk(t, goodToken)
	list, meta, err := client.Services().List(nil)
	if err != nil || meta.LastIndex != 40 || !meta.KnownLeader {
		t.Fatalf("list: %+v, %v, want the index 40", meta, err)
	}
	want := []*api.ServiceRegistrationListStub{{Namespace: "default", Services: []*api.ServiceRegistrationStub{
		{ServiceName: "cache", Tags: []string{}}, {ServiceName: "web", Tags: []string{"blue", "green", "http"}},
	}}}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	web, _, err := client.Services().Get("web", nil)
	if err != nil || len(web) != 2 || web[0].AllocID != otherID ||
		!cmp.Equal(web[1], instance("default", "web", allocID, 8080, "http", "green")) {
		t.Errorf("web: %+v, %v", web, err)
	}
	none, meta, err := client.Services().Get("nobody", nil)
	if err != nil || none == nil || len(none) != 0 || meta.LastIndex != 40 {
		t.Errorf("a service that nobody has: %+v, %+v, %v, want an empty list", none, meta, err)
	}
	own, _, err := client.Allocations().Services(allocID, nil)
	if err != nil || len(own) != 1 || own[0].Port != 8080 {
		t.Errorf("the allocation's: %+v, %v", own, err)
	}
	_, _, err = client.Allocations().Services(otherID, nil)
	wantSDKError(t, err, 404, "allocation not found")
	ofJob, _, err := client.Jobs().Services("demo", nil)
	if err != nil || len(ofJob) != 2 {
		t.Errorf("the job's: %+v, %v, want both instances of web", ofJob, err)
	}
	_, _, err = client.Jobs().Services("redis", nil)
	wantSDKError(t, err, 404, "job not found")
}

// TestServicesOnTheWire: the bytes are Nomad's, with no null where it has none.
func TestServicesOnTheWire(t *testing.T) {
	s := newServer(t, newAlloc(t), serving(newFakeServices(instance("default", "web", allocID, 8080))))
	for path, want := range map[string]string{
		"/v1/services": `[{"Namespace":"default","Services":[{"ServiceName":"web","Tags":[]}]}]`,
		"/v1/service/web": `[{"ID":"_nomad-task-` + allocID +
			`-group-web-web-http","ServiceName":"web","Namespace":"default","NodeID":"` + otherID +
			`","Datacenter":"dc1","JobID":"demo","AllocID":"` + allocID +
			`","Tags":[],"Address":"127.0.0.1","Port":8080,"CreateIndex":7,"ModifyIndex":9}]`,
		"/v1/service/nobody":            `[]`,
		"/v1/service/web?choose=0|key":  `[]`,
		"/v1/services?prefix=nobody":    `[]`,
		"/v1/services?namespace=nobody": `[]`,
	} {
		if got := s.do(t, http.MethodGet, path, poorToken, ""); got.Status != 200 || got.Body != want {
			t.Errorf("%s = %d %s, want %s", path, got.Status, got.Body, want)
		}
	}
}

// TestServicesOfNamespaces: a task sees its own namespace alone, whatever it asks for; the operator also others.
func TestServicesOfNamespaces(t *testing.T) {
	s := newServer(t, newAlloc(t), serving(threeServices()))
	for token, want := range map[string]map[string]string{
		goodToken: {"": "cache web", "default": "cache web", "prod": "", "*": "cache web"},
		operator:  {"": "cache web", "default": "cache web", "prod": "db", "*": "cache web db", "nobody": ""},
	} {
		for namespace, names := range want {
			list, _, err := s.sdk(t, token).Services().List(&api.QueryOptions{Namespace: namespace})
			var got []string
			for _, group := range list {
				for _, service := range group.Services {
					got = append(got, service.ServiceName)
				}
			}
			if err != nil || strings.Join(got, " ") != names {
				t.Errorf("%s in %q: %v, %v, want %s", token, namespace, got, err, names)
			}
			db, _, err := s.sdk(t, token).Services().Get("db", &api.QueryOptions{Namespace: namespace})
			if err != nil || len(db) > 0 != strings.Contains(names, "db") {
				t.Errorf("%s gets db in %q: %v, %v", token, namespace, db, err)
			}
		}
	}
}

func TestServiceLists(t *testing.T) {
	s := newServer(t, newAlloc(t), serving(threeServices()))
	for path, want := range map[string]string{
		"/v1/services?prefix=w":                                    "web",
		"/v1/services?prefix=web":                                  "web",
		"/v1/services?prefix=eb":                                   "",
		"/v1/services?filter=" + url.QueryEscape(`"blue" in Tags`): "web",
		"/v1/services?filter=" + url.QueryEscape(`Port == 6379`):   "cache",
		"/v1/services?per_page=1":                                  "cache then default.web",
		"/v1/services?per_page=1&next_token=default.web":           "web",
		"/v1/services?reverse=true":                                "web cache",
		"/v1/service/web?per_page=1&reverse=true": allocID + " then default._nomad-task-" +
			otherID + "-group-web-web-http",
		"/v1/service/web?filter=" + url.QueryEscape(`"blue" in Tags`): otherID,
		"/v1/service/web?filter=" + url.QueryEscape(`AllocID != "x"`): otherID + " " + allocID,
		"/v1/allocation/" + allocID + "/services?filter=Port==1":      "",
		"/v1/allocation/" + allocID + "/services?filter=Port==8080":   allocID,
		"/v1/job/demo/services?per_page=1": otherID + " then default._nomad-task-" +
			allocID + "-group-web-web-http",
		"/v1/job/demo/services?filter=" + url.QueryEscape(`Address is empty`):     "",
		"/v1/services?next_token=" + url.QueryEscape("default.x") + "&per_page=9": "",
	} {
		got := s.do(t, http.MethodGet, path, goodToken, "")
		if got.Status != 200 {
			t.Errorf("%s = %d %s", path, got.Status, got.Body)
			continue
		}
		if listed := namesIn(t, got); listed != want {
			t.Errorf("%s lists %q, want %q", path, listed, want)
		}
	}
	for path, want := range map[string]string{
		"/v1/services?filter=Nonsense==1": `the filter can't be applied`,
		"/v1/services?next_token=x":       `next_token must be as X-Nomad-NextToken gave it`,
		"/v1/services?per_page=-1":        `per_page must be a whole number`,
		"/v1/services?index=x":            `index must be a whole number`,
		"/v1/service/web?wait=x":          `wait must be a duration`,
		"/v1/service/web?choose=2": `failed to choose services: Parameter for choose must be in form ` +
			`'<number>|<key>'`,
		"/v1/service/web?choose=2|":           `Parameter for choose`,
		"/v1/service/web?choose=-1|key":       `Parameter for choose`,
		"/v1/service/web?choose=9999999999|k": `Parameter for choose`,
		"/v1/service/web?choose=x|key":        `Parameter for choose`,
	} {
		if got := s.do(t, http.MethodGet, path, goodToken, ""); got.Status != 400 || !strings.Contains(got.Body, want) {
			t.Errorf("%s = %d %q, want 400 with %q", path, got.Status, got.Body, want)
		}
	}
}

// namesIn returns what a list has, by its names or the allocations of its registrations, and the token of the next
// page.
func namesIn(t *testing.T, got reply) string {
	t.Helper()
	var all []struct {
		AllocID  string
		Services []api.ServiceRegistrationStub
	}
	must.OK(t, json.Unmarshal([]byte(got.Body), &all))
	var names []string
	for _, entry := range all {
		if entry.AllocID != "" {
			names = append(names, entry.AllocID)
		}
		for _, service := range entry.Services {
			names = append(names, service.ServiceName)
		}
	}
	if next := got.Header.Get("X-Nomad-Nexttoken"); next != "" {
		names = append(names, "then", next)
	}
	return strings.Join(names, " ")
}

// TestChoose: the same key gets the same registrations as from Nomad, in the same order, and of those that stay the
// same ones when others go.
func TestChoose(t *testing.T) {
	services := newFakeServices()
	for i := range 4 {
		id := fmt.Sprintf("0000000%d-aaaa-bbbb-cccc-000000000000", i)
		services.put(&api.ServiceRegistration{
			ID: "_nomad-task-" + id + "-group-web-db-p", ServiceName: "db", Namespace: "default", AllocID: id,
			Address: fmt.Sprintf("10.0.0.%d", i), Port: 8000 + i, Tags: []string{fmt.Sprintf("t%d", i)},
		})
	}
	client := newServer(t, newAlloc(t), serving(services)).sdk(t, goodToken)
	chosen := func(choose string) (ports []int) {
		got, _, err := client.Services().Get("db", &api.QueryOptions{Params: map[string]string{"choose": choose}})
		must.OK(t, err)
		for _, s := range got {
			ports = append(ports, s.Port)
		}
		return ports
	}
	for choose, want := range map[string][]int{ // made with SHA-256 elsewhere
		"4|one": {8000, 8003, 8001, 8002}, "9|one": {8000, 8003, 8001, 8002}, "2|one": {8000, 8003}, "1|two": {8002},
		"3|three": {8002, 8001, 8000}, "0|one": nil,
	} {
		for range 3 {
			if got := chosen(choose); !slices.Equal(got, want) {
				t.Errorf("choose=%s: %v, want %v", choose, got, want)
			}
		}
	}
	must.Get(services.Deregister(t.Context(), "default", "db",
		"_nomad-task-00000003-aaaa-bbbb-cccc-000000000000-group-web-db-p"))(t)
	if got := chosen("3|one"); !slices.Equal(got, []int{8000, 8001, 8002}) {
		t.Errorf("with one gone: %v, want the others in their order", got)
	}
	counts := map[int]int{}
	for i := range 300 {
		counts[chosen(fmt.Sprintf("1|caller-%d", i))[0]]++
	}
	for port, n := range counts {
		if n < 50 {
			t.Errorf("of 300 callers %d have chosen %d, want about 100: %v", n, port, counts)
		}
	}
}

// TestServiceWait: a blocking query waits for its own service, and its token is looked at again afterwards.
func TestServiceWait(t *testing.T) {
	services := threeServices()
	client := newServer(t, newAlloc(t), serving(services)).sdk(t, goodToken)
	wait := &api.QueryOptions{WaitIndex: 40, WaitTime: time.Minute}
	type result struct {
		found int
		index uint64
		err   error
	}
	done := make(chan result, 1)
	go func() {
		got, meta, err := client.Services().Get("new", wait)
		if err != nil {
			meta = &api.QueryMeta{}
		}
		done <- result{len(got), meta.LastIndex, err}
	}()
	<-services.waits
	services.put(instance("default", "another", otherID, 1))
	<-services.waits // it waits on
	services.put(instance("default", "new", otherID, 2))
	if got := <-done; got != (result{1, 42, nil}) {
		t.Errorf("after the change: %+v, want one registration at 42", got)
	}
	list, meta, err := client.Services().List(wait)
	if err != nil || meta.LastIndex != 42 || len(list) != 1 {
		t.Errorf("a list from an earlier index: %+v, %+v, %v, want one at once", list, meta, err)
	}
	start := time.Now()
	if _, meta, err := client.Services().Get("new", &api.QueryOptions{WaitIndex: 42,
		WaitTime: 50 * time.Millisecond}); err != nil || meta.LastIndex != 42 {
		t.Errorf("after a wait in vain: %+v, %v", meta, err)
	}
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("it waited %v, want 50ms", took)
	}
}

func TestServiceDelete(t *testing.T) {
	services := threeServices()
	s := newServer(t, newAlloc(t), serving(services))
	id := "_nomad-task-" + otherID + "-group-web-web-http"
	_, err := s.sdk(t, goodToken).Services().Delete("web", id, nil)
	wantSDKError(t, err, 403, "Permission denied")
	client := s.sdk(t, operator)
	_, err = client.Services().Delete("web", "nope", nil)
	wantSDKError(t, err, 404, "service registration not found")
	_, err = client.Services().Delete("cache", id, nil)
	wantSDKError(t, err, 404, "service registration not found")
	_, err = client.Services().Delete("web", id, &api.WriteOptions{Namespace: "*"})
	wantSDKError(t, err, 400, "namespace must name one: a registration is removed from one namespace at a time")
	_, err = client.Services().Delete("web", id, &api.WriteOptions{Namespace: "prod"})
	wantSDKError(t, err, 404, "service registration not found")
	meta, err := client.Services().Delete("web", id, nil)
	if err != nil || meta.LastIndex != 41 {
		t.Errorf("delete: %+v, %v, want the index 41", meta, err)
	}
	if web, _, err := client.Services().Get("web", nil); err != nil || len(web) != 1 || web[0].AllocID != allocID {
		t.Errorf("after it: %+v, %v, want the other one", web, err)
	}
	s.stop()
	if records := s.audited(); len(records) == 0 || records[len(records)-1].Status != 200 {
		t.Errorf("records %+v, want one of the removal", records)
	}
}

// TestServicesIndexIsNotTheAllocations: who reads the services has not read the end of the allocation.
func TestServicesIndexIsNotTheAllocations(t *testing.T) {
	indexes := make(chan uint64, 2)
	s := newServer(t, newAlloc(t), serving(threeServices()), func(c *handlers.Config) {
		c.Answered = func(_ auth.Owner, index uint64) { indexes <- index }
	})
	s.do(t, http.MethodGet, "/v1/services", goodToken, "")
	s.do(t, http.MethodGet, "/v1/allocations", goodToken, "")
	if services, alloc := <-indexes, <-indexes; services != 0 || alloc != 34 {
		t.Errorf("indexes %d and %d, want 0 for the services and 34 for the allocation", services, alloc)
	}
}

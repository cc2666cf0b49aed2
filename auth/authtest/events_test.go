package authtest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth/authtest"
	"taskapi/internal/must"
)

// follow reads a task's event stream from an index on, and returns its lines. They end with the token that has opened
// it.
func follow(t *testing.T, client *api.Client, index uint64) <-chan *api.Events {
	t.Helper()
	topics := map[api.Topic][]string{api.TopicAllocation: {"*"}, api.TopicService: {"*"}}
	return must.Get(client.EventStream().Stream(t.Context(), topics, index, nil))(t)
}

// next returns the next event of a stream, and ok false at its end.
func next(t *testing.T, lines <-chan *api.Events) (e api.Event, ok bool) {
	t.Helper()
	limited, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case line := <-lines:
			switch {
			case line == nil || line.Err != nil:
				return e, false
			case len(line.Events) > 0:
				return line.Events[0], true
			}
		case <-limited.Done():
			t.Fatal("no event comes")
		}
	}
}

// TestEvents: a client that follows them loses its stream with its token, and goes on where it was with the next one.
func TestEvents(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t)
	lines := follow(t, srv.Client(srv.Token(authtest.WithTTL(time.Minute))), 0)
	first, ok := next(t, lines)
	if alloc, err := first.Allocation(); !ok || first.Topic != api.TopicAllocation || err != nil ||
		alloc.ID != srv.Operator().AllocationID() {
		t.Fatalf("the first event is %+v, %t, %v; want the task's allocation", first, ok, err)
	}
	id := srv.RegisterService("db", "127.0.0.1", 5432)
	registered, ok := next(t, lines)
	if s, err := registered.Service(); !ok || registered.Type != "ServiceRegistration" || err != nil || s.ID != id {
		t.Fatalf("then comes %+v, %t, %v; want the registration of %s", registered, ok, err, id)
	}
	srv.Advance(time.Hour)
	later := srv.RegisterService("cache", "127.0.0.1", 6379) // else the next heartbeat ends the stream
	if e, ok := next(t, lines); ok {
		t.Fatalf("a stream goes on after its token's end: %+v", e)
	}

	lines = follow(t, srv.Client(srv.Token()), registered.Index)
	var services []string
	for len(services) < 2 {
		e, ok := next(t, lines)
		if !ok {
			t.Fatalf("the stream ended after %v", services)
		}
		if s, err := e.Service(); err == nil && s != nil {
			services = append(services, s.ID)
		}
	}
	if want := []string{id, later}; !slices.Equal(services, want) {
		t.Errorf("from the index on come %v, want %v", services, want)
	}
	operator := srv.Operator()
	must.Get(operator.Client(operator.Token()).Allocations().Stop(&api.Allocation{ID: operator.AllocationID()},
		nil))(t)
	for e, ok := next(t, lines); ; e, ok = next(t, lines) {
		if alloc, err := e.Allocation(); !ok || err == nil && alloc != nil &&
			alloc.DesiredStatus == api.AllocDesiredStatusStop {
			break
		}
	}
}

// TestEventsOfOneNamespace: a task's stream has the services of its own namespace, other allocations' included, and
// those of no other, whichever it asks for.
func TestEventsOfOneNamespace(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{ID: "shop", Tasks: []string{"web"}}, authtest.Job{ID: "bank",
		Tasks: []string{"web"}}, authtest.Job{ID: "lab", Namespace: "dev", Tasks: []string{"web"}})
	shop := srv.Task("shop/web")
	lines := must.Get(shop.Client(shop.Token()).EventStream().Stream(t.Context(),
		map[api.Topic][]string{api.TopicService: {"*"}}, 0, &api.QueryOptions{Namespace: api.AllNamespacesNamespace}))(t)
	srv.Task("lab/web").RegisterService("lab", "127.0.0.1", 1)
	for _, task := range []*authtest.Task{srv.Task("bank/web"), shop} {
		id := task.RegisterService("db", "127.0.0.1", 5432)
		e, ok := next(t, lines)
		if s, err := e.Service(); !ok || err != nil || s.ID != id {
			t.Fatalf("comes %+v, %t, %v; want the registration of %s", e, ok, err, id)
		}
	}
}

// TestEventsOfVariables: a client that follows the variables of its task gets each change, by Nomad's SDK.
func TestEventsOfVariables(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{ID: "shop", Tasks: []string{"web"}})
	web, operator := srv.Task("shop/web"), srv.Operator()
	lines := must.Get(web.Client(web.Token()).EventStream().Stream(t.Context(),
		map[api.Topic][]string{"Variable": {"nomad/jobs/shop"}}, 0, nil))(t)
	kept := operator.Client(operator.Token()).Variables()
	for _, path := range []string{"secret", "nomad/jobs/shop"} {
		v := &api.Variable{Path: path, Items: api.VariableItems{"k": "v"}}
		_, _, err := kept.Create(v, nil)
		must.OK(t, err)
	}
	for _, deleted := range []bool{false, true} {
		if deleted {
			must.Get(kept.Delete("nomad/jobs/shop", nil))(t)
		}
		e, ok := next(t, lines)
		metadata, _ := e.Payload["Metadata"].(map[string]any)
		if !ok || e.Topic != "Variable" || e.Type != "VariableUpdated" || e.Key != "nomad/jobs/shop" ||
			e.Payload["Deleted"] != deleted || metadata["Path"] != e.Key || e.Payload["Items"] != nil {
			t.Errorf("comes %+v, %t; want the variable, deleted: %t", e, ok, deleted)
		}
	}
}

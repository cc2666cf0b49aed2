package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers"
	"taskapi/internal/must"
)

// wantSDKError checks for the words that the SDK makes of an error answer.
func wantSDKError(t *testing.T, err error, status int, body string) {
	t.Helper()
	unexpected, ok := errors.AsType[api.UnexpectedResponseError](err)
	if !ok {
		t.Errorf("error = %v, want an unexpected response", err)
		return
	}
	if unexpected.StatusCode() != status || unexpected.Body() != body {
		t.Errorf("error = %d %q, want %d %q", unexpected.StatusCode(), unexpected.Body(), status, body)
	}
}

func TestSDKAgent(t *testing.T) {
	client := newServer(t, newAlloc(t)).sdk(t, goodToken)

	health, err := client.Agent().Health()
	if err != nil || !health.Client.Ok || !health.Server.Ok {
		t.Errorf("health = %+v, %v", health, err)
	}
	self, err := client.Agent().Self()
	if err != nil || self.Stats["client"]["node_id"] != otherID || self.Member.Tags["build"] != "2.0.6-dev" {
		t.Errorf("self = %+v, %v", self, err)
	}
	if ui, _ := self.Config["UI"].(map[string]any); ui["ShowCLIHints"] != false {
		t.Errorf("the nomad command points to a web UI, which is not there: %+v", self.Config)
	}
	if region, err := client.Agent().Region(); region != "global" || err != nil {
		t.Errorf("region = %q, %v", region, err)
	}
	if name, err := client.Agent().NodeName(); name != "vm.global" || err != nil {
		t.Errorf("node name = %q, %v", name, err)
	}
	if leader, err := client.Status().Leader(); leader == "" || err != nil {
		t.Errorf("leader = %q, %v", leader, err)
	}
}

func TestSDKList(t *testing.T) {
	client := newServer(t, newAlloc(t)).sdk(t, goodToken)
	for name, c := range map[string]struct {
		options api.QueryOptions
		want    int
	}{
		"short prefix":        {api.QueryOptions{Prefix: "c0d1e142"}, 1},
		"odd prefix":          {api.QueryOptions{Prefix: "c0d"}, 1},
		"prefix in upper":     {api.QueryOptions{Prefix: "C0D1"}, 1},
		"whole ID":            {api.QueryOptions{Prefix: allocID}, 1},
		"another prefix":      {api.QueryOptions{Prefix: "ff"}, 0},
		"without task states": {api.QueryOptions{Params: map[string]string{"task_states": "false"}}, 1},
		"with resources":      {api.QueryOptions{Params: map[string]string{"resources": "true"}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			list, meta, err := client.Allocations().List(&c.options)
			if err != nil || len(list) != c.want {
				t.Fatalf("list = %d rows, %v; want %d", len(list), err, c.want)
			}
			if meta.LastIndex != 34 || !meta.KnownLeader || meta.LastContact != 0 {
				t.Errorf("meta = %+v, want the allocation's index of a known leader, also of an empty list", meta)
			}
			if c.want == 0 {
				return
			}
			if got, want := list[0].TaskStates == nil, c.options.Params["task_states"] == "false"; got != want {
				t.Errorf("no task states: %v, want %v", got, want)
			}
			if got, want := list[0].AllocatedResources != nil, c.options.Params["resources"] == "true"; got != want {
				t.Errorf("resources: %v, want %v", got, want)
			}
		})
	}
}

func TestSDKRestart(t *testing.T) {
	alloc, calls := newAlloc(t), make(chan string, 1)
	alloc.restartTask = func(_ context.Context, task string) error { calls <- "task " + task; return nil }
	alloc.restartRunning = func(context.Context) error { calls <- "running"; return nil }
	alloc.restartAll = func(context.Context) error { calls <- "all"; return nil }
	s := newServer(t, alloc)
	client, target := s.sdk(t, goodToken), &api.Allocation{ID: allocID}

	for want, call := range map[string]func() error{
		"task server": func() error { return client.Allocations().Restart(target, "server", nil) },
		"running":     func() error { return client.Allocations().Restart(target, "", nil) },
		"all":         func() error { return client.Allocations().RestartAllTasks(target, nil) },
	} {
		if err := call(); err != nil {
			t.Errorf("restart %s: %v", want, err)
		} else if got := <-calls; got != want {
			t.Errorf("restarted %q, want %q", got, want)
		}
	}
	for _, body := range []string{"", "{}", "null", " \n", `{"Other": 1}`} {
		got := s.do(t, http.MethodPost, "/v1/client/allocation/"+allocID+"/restart", goodToken, body)
		if got.Status != http.StatusOK || got.Body != `{"Index":0}` {
			t.Fatalf("restart with body %q = %d %q", body, got.Status, got.Body)
		}
		if call := <-calls; call != "running" {
			t.Errorf("body %q restarted %q, want those running", body, call)
		}
	}
}

func TestSDKSignal(t *testing.T) {
	alloc, calls := newAlloc(t), make(chan string, 1)
	alloc.signal = func(_ context.Context, task, signal string) error { calls <- task + " " + signal; return nil }
	client := newServer(t, alloc).sdk(t, goodToken)
	must.OK(t, client.Allocations().Signal(&api.Allocation{ID: allocID}, nil, "server", "SIGHUP"))
	if got, want := <-calls, "server SIGHUP"; got != want {
		t.Errorf("signal = %q, want %q", got, want)
	}
}

// TestSDKErrors is the table of answers for what goes wrong, seen through the SDK.
func TestSDKErrors(t *testing.T) {
	alloc := newAlloc(t)
	fault := interfaces.ErrTaskNotFound
	alloc.restartTask = func(context.Context, string) error { return fault }
	alloc.restartRunning = func(context.Context) error { return fault }
	alloc.signal = func(context.Context, string, string) error { return fault }
	client := newServer(t, alloc).sdk(t, goodToken).Allocations()
	own, other, broken := &api.Allocation{ID: allocID}, &api.Allocation{ID: otherID}, &api.Allocation{ID: "c0d1e142"}

	wantSDKError(t, client.Restart(own, "nope", nil), 404, "Could not find task runner for task: nope")
	wantSDKError(t, client.Signal(own, nil, "nope", "SIGHUP"), 404, "Task not found")
	fault = interfaces.ErrTaskNotRunning
	wantSDKError(t, client.Restart(own, "init", nil), 409, "Task not running")
	wantSDKError(t, client.Signal(own, nil, "init", "SIGHUP"), 409, "Task not running")
	fault = interfaces.ErrTerminal
	wantSDKError(t, client.Restart(own, "", nil), 409, "restart of an alloc that should not run")
	fault = interfaces.ErrUnknownSignal
	wantSDKError(t, client.Signal(own, nil, "", "SIGNOPE"), 400, `unknown signal "SIGNOPE"`)

	wantSDKError(t, client.Restart(other, "", nil), 404, `Unknown allocation "`+otherID+`"`)
	wantSDKError(t, client.Signal(other, nil, "", "SIGHUP"), 404, `Unknown allocation "`+otherID+`"`)
	_, err := client.Checks(otherID, nil)
	wantSDKError(t, err, 404, `Unknown allocation "`+otherID+`"`)
	_, _, err = client.Info(otherID, nil)
	wantSDKError(t, err, 404, "alloc not found")
	_, _, err = client.Info("c0d1e142", nil)
	wantSDKError(t, err, 400, `allocation ID "c0d1e142" must be a UUID of 36 characters, not 8`)
	err = client.Restart(broken, "", nil)
	wantSDKError(t, err, 400, `allocation ID "c0d1e142" must be a UUID of 36 characters, not 8`)
	_, _, err = client.Info(strings.Replace(allocID, "c", "x", 1), nil)
	wantSDKError(t, err, 400,
		`allocation ID "x0d1e142-a4a0-95b1-a59a-729f2d54a5d4" must be a UUID: hexadecimal digits in groups of 8-4-4-4-12`)
}

func TestSDKBlockingQuery(t *testing.T) {
	alloc := newAlloc(t)
	first := alloc.snapshot()
	waiting, next := make(chan uint64, 1), make(chan *api.Allocation, 1)
	alloc.wait = func(ctx context.Context, index uint64) *api.Allocation {
		waiting <- index
		select {
		case changed := <-next:
			return changed
		case <-ctx.Done():
			return first
		}
	}
	client := newServer(t, alloc).sdk(t, goodToken).Allocations()

	changed := *first
	changed.ModifyIndex, changed.ClientStatus = 35, "complete"
	next <- &changed
	got, meta, err := client.Info(allocID, &api.QueryOptions{WaitIndex: 34, WaitTime: time.Minute})
	if err != nil || got.ClientStatus != "complete" || meta.LastIndex != 35 {
		t.Errorf("blocked on 34: %+v, %v; want the change at 35", meta, err)
	}
	if index := <-waiting; index != 34 {
		t.Errorf("waited past %d, want 34", index)
	}
	if _, meta, err = client.Info(allocID, &api.QueryOptions{WaitIndex: 33}); err != nil || meta.LastIndex != 34 {
		t.Errorf("an index long passed: %+v, %v; want an answer at once", meta, err)
	}
	list, meta, err := client.List(&api.QueryOptions{WaitIndex: 34, WaitTime: time.Millisecond})
	if err != nil || len(list) != 1 || meta.LastIndex != 34 {
		t.Errorf("a wait without a change: %+v, %v; want what there is", meta, err)
	}
	<-waiting
}

func TestWhoami(t *testing.T) {
	s := newServer(t, newAlloc(t))
	var got map[string]any
	must.OK(t, json.Unmarshal([]byte(s.do(t, http.MethodGet, "/v1/acl/whoami", poorToken, "").Body), &got))
	want := map[string]any{
		"aud": "nomadproject.io", "exp": 1795257090.0, "iat": 1795253490.0, "nbf": 1795253490.0, "jti": "jti-1",
		"sub": "global:default:demo:web:server:default", "nomad_namespace": "default", "nomad_job_id": "demo",
		"nomad_allocation_id": allocID, "nomad_task": "server",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestWellKnown(t *testing.T) {
	none := newServer(t, newAlloc(t))
	some := newServer(t, newAlloc(t), func(c *handlers.Config) {
		c.JWKS = func() ([]byte, error) { return []byte(`{"keys":[]}`), nil }
		c.OpenIDConfiguration = func() ([]byte, error) { return []byte(`{"issuer":"x"}`), nil }
	})
	for target, want := range map[string]string{
		"/.well-known/jwks.json":            `{"keys":[]}`,
		"/.well-known/openid-configuration": `{"issuer":"x"}`,
	} {
		if got := some.do(t, http.MethodGet, target, poorToken, ""); got.Status != 200 || got.Body != want {
			t.Errorf("%s = %d %q, want %q", target, got.Status, got.Body, want)
		}
		if got := none.do(t, http.MethodGet, target, poorToken, ""); got.Status != 404 {
			t.Errorf("%s without a document = %d, want 404", target, got.Status)
		}
	}
}

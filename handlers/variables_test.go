package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/handlers"
)

// fakeVariables is variables of the namespace "default" in memory, with conflicts and locks as the real ones have them,
// but no rules of paths, sizes and times; what those say over HTTP is tested with real ones in cmd/taskapi.
type fakeVariables struct {
	mu      sync.Mutex // guards the fields below
	index   uint64
	kept    map[string]*api.Variable // by namespace and path
	changed chan struct{}            // closed, and replaced, by a change
	last    string                   // which was changed last

	awaited chan struct{} // gets an element whenever somebody begins to wait, or waits on
}

func newFakeVariables(paths ...string) *fakeVariables {
	f := &fakeVariables{index: 40, kept: map[string]*api.Variable{}, changed: make(chan struct{}),
		awaited: make(chan struct{}, 100)}
	for _, path := range paths {
		_, _, _ = f.Put(context.Background(), &api.Variable{Namespace: "default", Path: path,
			Items: api.VariableItems{"k": "v"}}, nil)
	}
	return f
}

func (f *fakeVariables) Read(_ context.Context, namespace, path string) (*api.Variable, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.kept[namespace+"/"+path]; v != nil {
		found := *v
		return &found, v.ModifyIndex, nil
	}
	return nil, f.index, nil
}

func (f *fakeVariables) List(_ context.Context, namespace, prefix string,
	concerns variables.Concerns) ([]*api.VariableMetadata, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*api.VariableMetadata
	for _, v := range f.kept {
		if (namespace == "*" || v.Namespace == namespace) && strings.HasPrefix(v.Path, prefix) &&
			concerns(v.Namespace, v.Path) {
			m := v.Metadata()
			m.Lock = v.Lock
			list = append(list, m)
		}
	}
	return list, f.index, nil
}

func (f *fakeVariables) Await(ctx context.Context, _, _ string, after uint64, concerns variables.Concerns) error {
	for {
		f.mu.Lock()
		index, changed, last := f.index, f.changed, f.last
		f.mu.Unlock()
		if namespace, path, _ := strings.Cut(last, "/"); index > after && concerns(namespace, path) {
			return nil
		}
		f.awaited <- struct{}{}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeVariables) Put(_ context.Context, v *api.Variable, check *uint64) (*api.Variable, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.kept[v.Namespace+"/"+v.Path]
	if was == nil {
		was = &api.Variable{}
	}
	if check != nil && *check != was.ModifyIndex {
		return nil, 0, &variables.ConflictError{Variable: was}
	}
	if was.LockID() != v.LockID() {
		return nil, 0, &variables.ConflictError{Variable: &api.Variable{Namespace: v.Namespace, Path: v.Path}}
	}
	written := *v
	written.Lock = was.Lock
	return f.set(&written), f.index, nil
}

// set writes a variable. f.mu is held.
func (f *fakeVariables) set(v *api.Variable) *api.Variable {
	f.index++
	v.CreateIndex, v.ModifyIndex, v.CreateTime, v.ModifyTime = f.index, f.index, 1, 1
	f.last = v.Namespace + "/" + v.Path
	f.kept[f.last] = v
	close(f.changed)
	f.changed = make(chan struct{})
	shown := *v
	return &shown
}

func (f *fakeVariables) Delete(_ context.Context, namespace, path string, check *uint64) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.kept[namespace+"/"+path]; v != nil && check != nil && *check != v.ModifyIndex {
		return 0, &variables.ConflictError{Variable: v}
	}
	delete(f.kept, namespace+"/"+path)
	f.index++
	return f.index, nil
}

func (f *fakeVariables) Acquire(_ context.Context, v *api.Variable) (*api.Variable, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if was := f.kept[v.Namespace+"/"+v.Path]; was != nil && was.Lock != nil {
		return nil, 0, &variables.ConflictError{Variable: &api.Variable{Namespace: v.Namespace, Path: v.Path}}
	}
	v.Lock = &api.VariableLock{ID: "lock", TTL: "15s", LockDelay: "15s"}
	return f.set(v), f.index, nil
}

func (f *fakeVariables) Renew(
	_ context.Context, namespace, path, lockID string,
) (*api.VariableMetadata, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.kept[namespace+"/"+path]
	switch {
	case v == nil:
		return nil, 0, variables.ErrNotFound
	case v.LockID() != lockID:
		return nil, 0, variables.ErrLocked
	}
	m := v.Metadata()
	m.Lock = v.Lock
	return m, v.ModifyIndex, nil
}

func (f *fakeVariables) Release(_ context.Context, namespace, path, _ string) (*api.Variable, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := *f.kept[namespace+"/"+path]
	v.Lock = nil
	return f.set(&v), f.index, nil
}

// Feed reports no changes.
func (*fakeVariables) Feed() *variables.Feed {
	return variables.New(variables.Config{Store: memory.New()}).Feed()
}

// lastingVariables keeps what is deleted.
type lastingVariables struct{ *fakeVariables }

func (lastingVariables) Delete(context.Context, string, string, *uint64) (uint64, error) {
	return 1, nil
}

// withVariables serves variables.
func withVariables(kept handlers.Variables) func(*handlers.Config) {
	return func(c *handlers.Config) { c.Variables = kept }
}

const ownVariables = "nomad/jobs nomad/jobs/demo nomad/jobs/demo/web nomad/jobs/demo/web/server"

// TestVariableRights: a task reads and lists exactly what Nomad's implicit policy gives it, whatever there is, and
// changes nothing; what it may not read and what is not there are told apart by nothing.
func TestVariableRights(t *testing.T) {
	others := strings.Fields("nomad nomad/jobs/demo/web/other nomad/jobs/demo/other nomad/jobs/demo/web/server/x " +
		"nomad/jobs/dem nomad/jobs/demo2 nomad/jobs/other secret x")
	kept := newFakeVariables(append(strings.Fields(ownVariables), others...)...)
	s := newServer(t, newAlloc(t), withVariables(kept))
	for _, token := range []string{goodToken, nomadToken} {
		for path := range strings.FieldsSeq(ownVariables) {
			if got := s.do(t, "GET", "/v1/var/"+path, token, ""); got.Status != 200 ||
				!strings.Contains(got.Body, `"Items":{"k":"v"}`) {
				t.Errorf("own %s = %d %q", path, got.Status, got.Body)
			}
			if got := s.do(t, "GET", "/v1/var/"+path+"?namespace=prod", token, ""); got.Status != 403 {
				t.Errorf("%s of another namespace = %d %q", path, got.Status, got.Body)
			}
		}
		for _, path := range append(others, "none", "nomad/jobs/demo/", "nomad/jobs//demo", "nomad%2Fjobs%2Fother",
			"%6eomad/jobs/other", "nomad/jobs/demo/../other") {
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				if got := s.do(t, method, "/v1/var/"+path, token, anyBody); got.Status != 403 || got.Body != "Permission denied" {
					t.Errorf("%s %s = %d %q, want a refusal", method, path, got.Status, got.Body)
				}
			}
		}
		for query, want := range map[string]string{
			"": ownVariables, "namespace=*": ownVariables, "namespace=prod": "",
			"prefix=nomad/jobs/demo/": "nomad/jobs/demo/web nomad/jobs/demo/web/server",
			"prefix=secret":           "", "filter=Path+contains+%22server%22": "nomad/jobs/demo/web/server",
			"per_page=1":                             "nomad/jobs",
			"next_token=default.nomad/jobs/demo/web": "nomad/jobs/demo/web nomad/jobs/demo/web/server",
		} {
			client := s.do(t, "GET", "/v1/vars?"+query, token, "")
			if got := listedPaths(t, client); got != want {
				t.Errorf("list %s = %s, want %s", query, got, want)
			}
		}
	}
	s.stop()
	refused := slices.IndexFunc(s.audited(), func(r auth.Record) bool {
		return r.Path == "/v1/var/secret" && r.Method == "GET" && r.Outcome == auth.Denied &&
			r.Reason == auth.MissingCapability.String()
	})
	if refused < 0 {
		t.Errorf("the refusal of a path is not in the audit log: %+v", s.audited())
	}
}

func listedPaths(t *testing.T, got reply) string {
	t.Helper()
	var list []api.VariableMetadata
	if err := json.Unmarshal([]byte(got.Body), &list); err != nil || got.Status != 200 {
		t.Fatalf("a list: %d %q, %v", got.Status, got.Body, err)
	}
	var paths []string
	for _, m := range list {
		paths = append(paths, m.Path)
	}
	return strings.Join(paths, " ")
}

// TestLocksAreTheOperatorsToSee: a lock's ID is what its holder proves itself by.
func TestLocksAreTheOperatorsToSee(t *testing.T) {
	kept := newFakeVariables("nomad/jobs/demo")
	s := newServer(t, newAlloc(t), withVariables(kept))
	token := operator
	operator := s.sdk(t, token).Variables()
	v := api.NewVariable("nomad/jobs/demo")
	if v, _, err := operator.AcquireLock(v, nil); err != nil || v.LockID() != "lock" {
		t.Fatalf("acquire: %+v, %v", v, err)
	}
	// Every refused write has an index, as in Nomad: 0 where the variable is not shown.
	got := s.do(t, "PUT", "/v1/var/nomad/jobs/demo?lock-acquire", token, `{}`)
	if got.Status != 409 || got.Header.Get("X-Nomad-Index") != "0" {
		t.Errorf("locked: %d %q, index %q", got.Status, got.Body, got.Header.Get("X-Nomad-Index"))
	}
	for path, want := range map[string]string{"/v1/var/nomad/jobs/demo": "a task", "/v1/vars": "a task's list",
		"/v1/vars?filter=Lock.ID==%22lock%22": "a filter"} {
		if got := s.do(t, "GET", path, goodToken, ""); strings.Contains(got.Body, "lock") {
			t.Errorf("%s shows the lock: %s", want, got.Body)
		}
	}
	if v, _, err := operator.Read("nomad/jobs/demo", nil); err != nil || v.LockID() != "lock" {
		t.Errorf("the operator: %+v, %v", v, err)
	}
	if list, _, err := operator.List(nil); err != nil || len(list) != 1 || list[0].Lock == nil {
		t.Errorf("the operator's list: %+v, %v", list, err)
	}
}

// TestVariablesAreNowhere: a program without variables never says that there is none.
func TestVariablesAreNowhere(t *testing.T) {
	client := newServer(t, newAlloc(t)).sdk(t, goodToken).Variables()
	for name, call := range map[string]func() error{
		"Peek": func() error { _, _, err := client.Peek("nomad/jobs", nil); return err },
		"Read": func() error { _, _, err := client.Read("nomad/jobs", nil); return err },
		"List": func() error { _, _, err := client.List(nil); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "501") || errors.Is(err, api.ErrVariablePathNotFound) {
			t.Errorf("%s: %v, want 501", name, err)
		}
	}
}

// TestVariableWaits: a query waits for its own variable, also until it is there, and no other one ends the wait.
func TestVariableWaits(t *testing.T) {
	kept := newFakeVariables("nomad/jobs")
	s := newServer(t, newAlloc(t), withVariables(kept))
	client := s.sdk(t, goodToken).Variables()
	none, meta, err := client.Peek("nomad/jobs/demo", nil)
	if none != nil || err != nil || meta.LastIndex == 0 || !meta.KnownLeader {
		t.Fatalf("one that is not there: %+v, %+v, %v; want an index to wait from", none, meta, err)
	}
	type result struct {
		v   *api.Variable
		err error
	}
	got, listed := make(chan result, 1), make(chan int, 1)
	wait := &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute}
	go func() {
		v, _, err := client.Peek("nomad/jobs/demo", wait)
		got <- result{v, err}
	}()
	go func() {
		list, _, _ := client.List(wait)
		listed <- len(list)
	}()
	put := func(path string) {
		if _, _, err := kept.Put(t.Context(), &api.Variable{Namespace: "default", Path: path,
			Items: api.VariableItems{"k": "w"}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	waits := func() {
		for range 2 {
			select {
			case <-kept.awaited:
			case r := <-got:
				t.Fatalf("it does not wait: %+v, %v", r.v, r.err)
			case n := <-listed:
				t.Fatalf("the list does not wait: %d", n)
			}
		}
	}
	waits()
	put("secret") // which neither of them is about
	waits()
	put("nomad/jobs/demo")
	if r := <-got; r.err != nil || r.v == nil || r.v.Items["k"] != "w" {
		t.Errorf("woken with %+v, %v", r.v, r.err)
	}
	if n := <-listed; n != 2 {
		t.Errorf("the list was woken with %d, want 2", n)
	}
}

// TestVariableWaitEnds: a wait that nothing ends is answered with what there is.
func TestVariableWaitEnds(t *testing.T) {
	s := newServer(t, newAlloc(t), withVariables(newFakeVariables("nomad/jobs")))
	for path, status := range map[string]int{"/v1/var/nomad/jobs": 200, "/v1/var/nomad/jobs/demo": 404, "/v1/vars": 200} {
		got := s.do(t, "GET", path+"?index=99&wait=1ms", goodToken, "")
		if got.Status != status || got.Header.Get("X-Nomad-Index") != "41" {
			t.Errorf("%s = %d %q, index %q", path, got.Status, got.Body, got.Header.Get("X-Nomad-Index"))
		}
	}
}

// forgetfulVariables knows the changes after an index alone.
type forgetfulVariables struct {
	*fakeVariables
	from uint64
}

func (f forgetfulVariables) Await(
	ctx context.Context, namespace, prefix string, after uint64, concerns variables.Concerns,
) error {
	if after < f.from {
		return nil
	}
	return f.fakeVariables.Await(ctx, namespace, prefix, after, concerns)
}

// TestOldVariableWaits: a query waits for a variable that has not changed since the store has forgotten its changes. A
// client that was answered at once would ask again and again.
func TestOldVariableWaits(t *testing.T) {
	kept := newFakeVariables("nomad/jobs", "secret", "other")
	s := newServer(t, newAlloc(t), withVariables(forgetfulVariables{kept, kept.index}))
	got := s.do(t, "GET", "/v1/var/nomad/jobs?index=41&wait=1ms", goodToken, "")
	if got.Status != 200 || got.Header.Get("X-Nomad-Index") != "41" || len(kept.awaited) != 1 {
		t.Errorf("got %d %q after %d waits", got.Status, got.Body, len(kept.awaited))
	}
}

// TestVariableWritesAreAudited without what they write.
func TestVariableWritesAreAudited(t *testing.T) {
	s := newServer(t, newAlloc(t), withVariables(newFakeVariables()))
	s.do(t, "PUT", "/v1/var/a/b?cas=0", operator, `{"Items":{"password":"hunter2"}}`)
	s.do(t, "DELETE", "/v1/var/a/b?cas=7", operator, "")
	s.do(t, "PUT", "/v1/var/a/b?namespace=prod", operator, `{"Items":{"password":"hunter2"}}`)
	s.do(t, "PUT", "/v1/var/a/b?namespace=prod", operator, `{"Namespace":"other","Items":{"password":"hunter2"}}`)
	s.do(t, "PUT", "/v1/var/a/b?lock-acquire", operator, `{"Items":{"password":"hunter2"}}`)
	s.do(t, "PUT", "/v1/var/a/b?lock-renew&namespace=prod", operator, `{"Lock":{"ID":"hunter2"}}`)
	s.do(t, "PUT", "/v1/var/a/b?lock-release", operator, `{"Lock":{"ID":"hunter2"}}`)
	s.do(t, "GET", "/v1/var/a/b?namespace=prod", nomadToken, "")
	s.stop()
	var got []string
	for _, r := range s.audited() {
		got = append(got, strings.Join([]string{r.Method, r.Path, string(r.Outcome), http.StatusText(r.Status), r.Namespace,
			r.Lock}, " "))
		if r.TokenID = ""; strings.Contains(fmt.Sprint(r), "hunter2") {
			t.Errorf("recorded %+v", r)
		}
	}
	if want := []string{
		"PUT /v1/var/a/b done OK default ", "DELETE /v1/var/a/b failed Conflict default ",
		"PUT /v1/var/a/b done OK prod ", "PUT /v1/var/a/b done OK other ",
		"PUT /v1/var/a/b done OK default acquire", "PUT /v1/var/a/b failed Conflict prod renew", "PUT /v1/var/a/b done OK " +
			"default release",
		"GET /v1/var/a/b denied Forbidden prod ",
	}; !slices.Equal(got, want) {
		t.Errorf("recorded\n%q, want\n%q", got, want)
	}
	if text := s.log.String(); strings.Contains(text, "hunter2") {
		t.Errorf("logged: %s", text)
	}
}

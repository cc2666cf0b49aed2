package authtest_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"taskapi/auth/authtest"
	"taskapi/internal/must"
)

// TestVariables: a task has Nomad's rights on variables, and sees what others write.
func TestVariables(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{ID: "shop", Tasks: []string{"web"}},
		authtest.Job{ID: "shop", Namespace: "prod", Tasks: []string{"web"}})
	client, operator := srv.Client(srv.Token()).Variables(), srv.Operator()
	const path = "nomad/jobs/shop/group/web"
	if _, _, err := client.Peek(path, nil); err != nil || srv.Variable(path) != nil {
		t.Errorf("before it is written: %v", err)
	}
	srv.PutVariable(path, map[string]string{"password": "hunter2"})
	srv.Task("prod/shop/web").PutVariable(path, map[string]string{"password": "other"})
	srv.PutVariable("nomad/jobs/other", map[string]string{"password": "secret"})
	read, _, err := client.Read(path, nil)
	if err != nil || read.Items["password"] != "hunter2" {
		t.Fatalf("got %+v, %v", read, err)
	}
	if list, _, err := client.List(nil); err != nil || len(list) != 1 || list[0].Path != path {
		t.Errorf("listed %+v, %v", list, err)
	}
	for _, refused := range []error{
		func() error { _, _, err := client.Read("nomad/jobs/other", nil); return err }(),
		func() error { _, _, err := client.Read(path, &api.QueryOptions{Namespace: "prod"}); return err }(),
		func() error { _, _, err := client.Update(read, nil); return err }(),
	} {
		if status(refused) != http.StatusForbidden {
			t.Errorf("%v, want 403", refused)
		}
	}
	written := &api.Variable{Path: path, Items: api.VariableItems{"password": "new"}}
	_, meta, err := operator.Client(operator.Token()).Variables().Update(written, nil)
	if err != nil || srv.Variable(path)["password"] != "new" {
		t.Errorf("the operator wrote %v, %v", srv.Variable(path), err)
	}
	waited := make(chan string, 1)
	go func() {
		v, _, err := client.Read(path, &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute})
		if err != nil {
			waited <- err.Error()
			return
		}
		waited <- v.Items["password"]
	}()
	srv.PutVariable(path, map[string]string{"password": "newest"})
	if got := <-waited; got != "newest" {
		t.Errorf("who waits for a change reads %s", got)
	}
	srv.DeleteVariable(path)
	if v, _, err := client.Peek(path, nil); v != nil || err != nil {
		t.Errorf("after its deletion: %v, %v", v, err)
	}
	srv.DeleteVariable(path) // there need be none
}

// lockPolicy lets a task lock what is below app/.
const lockPolicy = `
task "web" {
  variables {
    path "app/*" { capabilities = ["read", "write"] }
  }
}`

// TestLocks: the SDK's locks work, keep everybody else from writing, and end with the server's clock.
func TestLocks(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.FrozenClock(), authtest.Policy(lockPolicy),
		authtest.Job{Tasks: []string{"web"}}, authtest.Job{ID: "b", Tasks: []string{"web"}})
	const path = "app/leader"
	srv.PutVariable(path, map[string]string{"leader": "none"})
	locks := func(task *authtest.Task) *api.Locks {
		v := api.Variable{Path: path, Items: api.VariableItems{"leader": task.AllocationID()},
			Lock: &api.VariableLock{TTL: "10s", LockDelay: "2m"}}
		return must.Get(task.Client(task.Token()).Locks(api.WriteOptions{}, v))(t)
	}
	one, two := locks(srv.Task("test/web")), locks(srv.Task("b/web"))
	must.Get(one.Acquire(t.Context()))(t)
	if _, err := two.Acquire(t.Context()); err == nil {
		t.Error("two have the lock")
	}
	authtest.NewServer(t).PutVariable(path, map[string]string{"leader": "another server's"}) // has no such lock
	srv.Advance(19 * time.Second)
	if err := one.Renew(t.Context()); err != nil {
		t.Errorf("in time: %v", err)
	}
	srv.Advance(20 * time.Second) // twice the TTL
	if _, err := two.Acquire(t.Context()); err == nil {
		t.Error("it can be acquired within its delay")
	}
	operator := srv.Operator()
	variables := operator.Client(operator.Token()).Variables()
	held, meta, err := variables.Read(path, nil)
	if err != nil || held.Lock == nil {
		t.Fatalf("got %+v, %v", held, err)
	}
	waited := make(chan *api.Variable, 1)
	go func() {
		// nil for an error
		v, _, _ := variables.Read(path, &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute})
		waited <- v
	}()
	srv.Advance(2 * time.Minute) // no timer has got there
	if v := <-waited; v == nil || v.Lock != nil || v.ModifyIndex <= meta.LastIndex {
		t.Errorf("who waits for the end of the lock reads %+v", v)
	}
	if _, err := two.Acquire(t.Context()); err != nil {
		t.Errorf("after its time: %v", err)
	}
	if got := srv.Variable(path)["leader"]; got != srv.Task("b/web").AllocationID() {
		t.Errorf("the leader is %s", got)
	}
	if err := one.Renew(t.Context()); err == nil {
		t.Error("the first one renews what it has lost")
	}
	if err := two.Release(t.Context()); err != nil {
		t.Error(err)
	}
	srv.PutVariable(path, map[string]string{"leader": "none"})
}

// TestServices: what is registered is found with the rights of a task, by waiting queries too, and goes with its
// allocation.
func TestServices(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Job{ID: "shop", Tasks: []string{"web"}},
		authtest.Job{ID: "db", Tasks: []string{"db"}},
		authtest.Job{ID: "db", Namespace: "prod", Tasks: []string{"db"}})
	client := srv.Client(srv.Token()).Services()
	found := func(options *api.QueryOptions) (got []string, index uint64) {
		t.Helper()
		services, meta, err := client.Get("db", options)
		must.OK(t, err)
		for _, s := range services {
			got = append(got, fmt.Sprint(s.JobID, " ", s.Address, " ", s.Port, " ", s.Tags))
		}
		slices.Sort(got)
		return got, meta.LastIndex
	}
	db := srv.Task("default/db/db")
	db.RegisterService("db", "10.0.0.1", 5432)
	db.RegisterService("db", "10.0.0.1", 5432, "primary") // in its place
	six := srv.RegisterService("db", "fd00::1", 5432, "replica", "old")
	srv.Task("prod/db/db").RegisterService("db", "10.0.0.9", 1)
	got, index := found(nil)
	if want := []string{"db 10.0.0.1 5432 [primary]", "shop fd00::1 5432 [replica old]"}; !slices.Equal(got, want) {
		t.Fatalf("found %q, want %q", got, want)
	}
	if _, err := client.Delete("db", six, nil); status(err) != http.StatusForbidden {
		t.Errorf("a task removes a registration: %v, want 403", err)
	}
	operator := srv.Operator()
	if _, err := operator.Client(operator.Token()).Services().Delete("db", six, nil); err != nil {
		t.Error(err)
	}
	if again := srv.RegisterService("db", "fd00::1", 5432); again != six {
		t.Errorf("the ID was %s, and is %s", six, again)
	}
	srv.DeregisterService(six)
	_, index = found(&api.QueryOptions{WaitIndex: index, WaitTime: time.Minute})
	waited := make(chan []string, 1)
	go func() {
		got, _ := found(&api.QueryOptions{WaitIndex: index, WaitTime: time.Minute})
		waited <- got
	}()
	db.End()
	if got := <-waited; len(got) != 0 {
		t.Errorf("after the end of its allocation: %q", got)
	}
	if got, _ := found(&api.QueryOptions{Namespace: "prod"}); len(got) != 0 {
		t.Errorf("in another namespace a task finds %q", got)
	}
}

// TestTasksLeaveRoom: a task that writes as much as it may keeps neither the operator from writing nor a service from
// being registered.
func TestTasksLeaveRoom(t *testing.T) {
	t.Parallel()
	srv := authtest.NewServer(t, authtest.Policy(lockPolicy))
	put := func(client *api.Client, path string) error {
		_, _, err := client.Variables().Create(&api.Variable{Path: path,
			Items: api.VariableItems{"k": strings.Repeat("v", 60<<10)}}, nil)
		return err
	}
	client, operator := srv.Client(srv.Token()), srv.Operator()
	var err error
	for n := 0; err == nil && n < 1000; n++ {
		err = put(client, fmt.Sprintf("app/%d", n))
	}
	if status(err) != 413 || !strings.Contains(err.Error(), "the share of a job") {
		t.Errorf("the task: %v", err)
	}
	if err := put(operator.Client(operator.Token()), "app/operator"); err != nil {
		t.Errorf("the operator: %v", err)
	}
	srv.RegisterService("db", "10.0.0.1", 5432)
}

// TestSearchVariables: a task finds the variables that it may list, and the implicit policy alone lets it search for
// none.
func TestSearchVariables(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]struct {
		status int
		paths  string
	}{
		"local":    {200, "nomad/jobs/test"},
		"nomad":    {403, ""},
		lockPolicy: {200, "app/leader nomad/jobs/test"},

		`task "web" { policy = "deny" }`:    {403, ""},
		"preset = \"nomad\"\n" + lockPolicy: {200, "app/leader nomad/jobs/test"},
	} {
		srv := authtest.NewServer(t, authtest.Policy(policy))
		for _, path := range []string{"nomad/jobs/test", "nomad/jobs/other", "app/leader", "secret"} {
			srv.PutVariable(path, map[string]string{"k": "v"})
		}
		search := srv.Client(srv.Token()).Search()
		one, _, err := search.PrefixSearch("", contexts.Variables, nil)
		if status(err) != want.status || err == nil && strings.Join(one.Matches[contexts.Variables], " ") != want.paths {
			t.Errorf("%s: found %+v, %v", policy, one, err)
		}
		all, _, err := search.FuzzySearch("er", contexts.All, nil) // of leader, and of other
		must.OK(t, err)
		if found := fmt.Sprint(all.Matches[contexts.Variables]); strings.Contains(want.paths,
			"leader") != (found == "[{app/leader [default app/leader]}]") {
			t.Errorf("%s: found %s everywhere", policy, found)
		}
		if _, searched := all.Truncations[contexts.Variables]; searched != (want.status == 200) {
			t.Errorf("%s: searched variables is %v", policy, searched)
		}
		if other, _, err := search.PrefixSearch("", contexts.All, &api.QueryOptions{Namespace: "prod"}); err != nil ||
			len(other.Matches[contexts.Variables]) != 0 {
			t.Errorf("%s: found %+v in another namespace, %v", policy, other, err)
		}
	}
}

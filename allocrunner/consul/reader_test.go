package consul_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	capi "github.com/hashicorp/consul/api"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/consul/consultest"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/templates/render"
	"taskapi/internal/must"
)

// sent is what a Reader has sent.
type sent struct {
	render.Answer
	err error
}

// follow follows a query until the test's end.
func (e *environment) follow(token string, q render.Query) <-chan sent {
	e.Helper()
	reader := consul.NewReader(consul.Settings{Address: e.proxy.URL}, consul.Secrets{Token: token}, "default", "")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	answers := make(chan sent, 100)
	go func() {
		defer close(done)
		reader.Follow(ctx, q, nil, func(a render.Answer, err error) { answers <- sent{a, err} })
	}()
	e.Cleanup(func() {
		cancel()
		<-done
		reader.Close()
	})
	return answers
}

func (e *environment) putKey(key, value string) {
	e.Helper()
	must.Get(e.api.KV().Put(&capi.KVPair{Key: key, Value: []byte(value)}, nil))(e)
}

// TestFollowKey: each change of a key is sent once, and between changes there is one request that waits.
func TestFollowKey(t *testing.T) {
	t.Parallel()
	e, begun := newEnvironment(t), time.Now()
	key := "taskapi-test/" + uuid.NewString()
	t.Cleanup(func() { _, _ = e.api.KV().DeleteTree(key, nil) })
	answers := e.follow(e.token, render.Query{Kind: render.Key, Name: key})
	if first := <-answers; first.err != nil || first.Value != nil {
		t.Fatalf("a key that does not exist: %+v", first)
	}
	for i := range 5 {
		e.putKey(key, fmt.Sprint(i))
		if is := <-answers; is.err != nil || is.Value == nil || *is.Value != fmt.Sprint(i) {
			t.Fatalf("after the change %d: %+v", i, is)
		}
		e.putKey(key+"/other", fmt.Sprint(i))
	}
	must.Get(e.api.KV().Delete(key, nil))(t)
	if last := <-answers; last.err != nil || last.Value != nil {
		t.Fatalf("after its end: %+v", last)
	}
	// There are 11 changes, the first request and the last, and one a minute on a machine that is that slow.
	if requests := e.proxy.Count(); e.stand != nil && requests > 13+int(time.Since(begun)/time.Minute) {
		t.Errorf("%d requests: it polls", requests)
	}
}

// TestFollowKeys sends what is below a prefix.
func TestFollowKeys(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	prefix := "taskapi-test/" + uuid.NewString()
	t.Cleanup(func() { _, _ = e.api.KV().DeleteTree(prefix, nil) })
	answers := e.follow(e.token, render.Query{Kind: render.Keys, Name: prefix})
	if first := <-answers; first.err != nil || len(first.Pairs) > 0 {
		t.Fatalf("nothing: %+v", first)
	}
	e.putKey(prefix+"/a/b", "1")
	is := <-answers
	if is.err != nil || len(is.Pairs) != 1 || is.Pairs[0].Key != "a/b" || is.Pairs[0].Value != "1" ||
		is.Pairs[0].Path != prefix+"/a/b" {
		t.Errorf("a key: %+v", is)
	}
}

// TestFollowService sends healthy instances, and the catalog.
func TestFollowService(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	p := e.run(nil)
	name := "web-" + p.alloc[:8]
	passing := e.follow(e.token, render.Query{Kind: render.HealthService, Name: name, Filter: "passing"})
	critical := e.follow(e.token, render.Query{Kind: render.HealthService, Name: name, Filter: "critical", Tag: "b"})
	catalog := e.follow(e.token, render.Query{Kind: render.CatalogServices})
	in := instance(p, name, nil)
	e.register(p, in)
	for is := range critical {
		if is.err != nil || len(is.Health) == 1 && is.Health[0].Port == 20530 && is.Health[0].Status == "critical" {
			break
		}
	}
	for is := range catalog {
		if is.err != nil || strings.Contains(fmt.Sprint(names(is.Catalog)), name+"[a b]") {
			break
		}
	}
	p.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: "well"})
	for is := range passing {
		if is.err != nil || len(is.Health) == 1 {
			if is.err != nil || is.Health[0].Address != "127.0.0.1" || is.Health[0].Tags[1] != "b" {
				t.Errorf("a healthy one: %+v", is)
			}
			break
		}
	}
}

func names(catalog []*render.CatalogSnippet) (list []string) {
	for _, s := range catalog {
		list = append(list, s.Name+fmt.Sprint(s.Tags))
	}
	return list
}

// TestFollowDenied says which rule a token lacks. An agent that is away is tried again until it answers.
func TestFollowDenied(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	if e.stand == nil {
		t.Skip("the agent may have no ACLs")
	}
	e.stand.Token()
	q := render.Query{Kind: render.Key, Name: "a"}
	is := <-e.follow("none-such", q)
	if !errors.Is(is.err, render.ErrDenied) || !strings.Contains(is.err.Error(), `key_prefix "…" { policy = "read" }`) {
		t.Errorf("a token that is unknown: %v", is.err)
	}
	e.proxy.Away()
	answers := e.follow(consultest.Management, q)
	if is := <-answers; is.err == nil || errors.Is(is.err, render.ErrDenied) {
		t.Errorf("an agent that is away: %+v", is)
	}
	e.putKey("a", "1")
	e.proxy.Back()
	for is := range answers {
		if is.err == nil {
			if is.Value == nil || *is.Value != "1" {
				t.Errorf("an agent that is back: %+v", is)
			}
			break
		}
	}
}

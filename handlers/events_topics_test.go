package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/internal/must"
)

// touched is an allocation whose Touch puts another version, as a runner does.
func touched(t *testing.T, log *events.Log, index uint64) *fakeAlloc {
	t.Helper()
	alloc := newAlloc(t)
	current := *recordedAlloc()
	current.ModifyIndex = index
	alloc.snapshot = func() *api.Allocation { now := current; return &now }
	alloc.touch = func() bool {
		current.ModifyIndex++
		put(t, log, current.ModifyIndex, nil)
		return true
	}
	alloc.stop = func(context.Context, bool) error { return nil }
	return alloc
}

// topicsOf returns the topics and types of a line's events.
func topicsOf(log *api.Events) (all []string) {
	for _, e := range log.Events {
		all = append(all, string(e.Topic)+" "+e.Type)
		if e.Index != log.Index {
			all = append(all, "with another index")
		}
	}
	return all
}

// TestSDKTopics: each topic's payload is what the SDK decodes it to.
func TestSDKTopics(t *testing.T) {
	log := events.New()
	log.Begin()
	alloc := touched(t, log, 40)
	client := newServerOf(t, auth.Owner{AllocationID: allocID, UID: peer.UID}, alloc, everyRoute,
		streaming(log)).sdk(t, operator)
	stream := must.Get(client.EventStream().Stream(t.Context(), nil, 0, &api.QueryOptions{}))(t)
	put(t, log, 40, nil)
	first := next(t, stream)
	want := []string{"Node NodeRegistration", "Job JobRegistered", "Evaluation JobRegistered",
		"Evaluation EvaluationUpdated", "Allocation PlanResult"}
	if diff := cmp.Diff(want, topicsOf(first)); diff != "" {
		t.Fatalf("the beginning: -want +got\n%s", diff)
	}
	if node, err := first.Events[0].Node(); err != nil || node.ID != anyNode {
		t.Errorf("node = %+v, %v", node, err)
	}
	if begun, err := first.Events[2].Evaluation(); err != nil || begun.Status != api.EvalStatusPending ||
		begun.ID != recordedAlloc().EvalID {
		t.Errorf("evaluation = %+v, %v, want the pending one", begun, err)
	}
	first.Events = slices.Concat(first.Events[1:2], first.Events[3:])
	job, err := first.Events[0].Job()
	if err != nil || *job.ID != "demo" || len(job.TaskGroups) != 1 || first.Events[0].Key != "demo" {
		t.Errorf("job = %+v, %v", job, err)
	}
	placed, err := first.Events[1].Evaluation()
	if err != nil || placed.ID != recordedAlloc().EvalID || placed.Status != api.EvalStatusComplete ||
		first.Events[1].Key != placed.ID {
		t.Errorf("evaluation = %+v, %v", placed, err)
	}

	stopped := must.Get(client.Allocations().Stop(&api.Allocation{ID: allocID}, nil))(t)
	line := next(t, stream)
	if diff := cmp.Diff([]string{"Evaluation AllocationUpdateDesiredStatus", "Evaluation EvaluationUpdated",
		"Allocation AllocationUpdated"}, topicsOf(line)); diff != "" || line.Index != 41 {
		t.Errorf("a stop: index %d -want +got\n%s", line.Index, diff)
	}
	if e, err := line.Events[0].Evaluation(); err != nil || e.ID != stopped.EvalID || e.TriggeredBy != "alloc-stop" {
		t.Errorf("its evaluation = %+v, %v, want %s", e, err, stopped.EvalID)
	}

	if _, _, err := client.Jobs().Deregister("demo", false, nil); err != nil {
		t.Fatal(err)
	}
	line = next(t, stream)
	want = []string{"Job JobDeregistered", "Evaluation JobDeregistered", "Evaluation EvaluationUpdated",
		"Allocation AllocationUpdated"}
	if diff := cmp.Diff(want, topicsOf(line)); diff != "" {
		t.Errorf("the job's end: -want +got\n%s", diff)
	}
	if ended, deleted, err := line.Events[0].DeregisteredJob(); err != nil || deleted || ended.Stop == nil ||
		!*ended.Stop {
		t.Errorf("job = %+v, %v, %v, want one that stops", ended, deleted, err)
	}

	put(t, log, 50, func(a *api.Allocation) {
		job := *a.Job
		job.JobModifyIndex, a.Job = new(uint64(50)), &job
	})
	if diff := cmp.Diff([]string{"Job JobRegistered", "Allocation PlanResult"}, topicsOf(next(t, stream))); diff != "" {
		t.Errorf("another version: -want +got\n%s", diff)
	}

	alloc.touch = func() bool { return false } // it has ended
	must.Get(client.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{Meta: map[string]*string{"a": new("b")}},
		nil))(t)
	line = next(t, stream)
	if diff := cmp.Diff([]string{"Node NodeRegistration"}, topicsOf(line)); diff != "" || line.Index != 50 {
		t.Errorf("metadata: index %d -want +got\n%s", line.Index, diff)
	}
	if n, err := line.Events[0].Node(); err != nil || n.ID != otherID || line.Events[0].Key != otherID {
		t.Errorf("node = %+v, %v", n, err)
	}
}

// changes are changes of services, of which the latest 256 are kept.
type changes struct {
	mu   sync.Mutex // guards the fields below
	all  []*registry.Change
	more chan struct{}
}

func (c *changes) put(s *api.ServiceRegistration, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, &registry.Change{Gone: gone, Value: func() *api.ServiceRegistration { return s }})
	if c.more != nil {
		close(c.more)
		c.more = nil
	}
}

func (*changes) Read(context.Context) func() { return func() {} }

func (c *changes) Since(number uint64) ([]*registry.Change, uint64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more == nil {
		c.more = make(chan struct{})
	}
	next := uint64(len(c.all))
	return c.all[max(min(number, next), max(next, 256)-256):], next, c.more
}

// TestServiceEvents: they have Nomad's payload and filter keys, and come in their order, with the allocation's index.
func TestServiceEvents(t *testing.T) {
	log := events.New()
	client := newServer(t, touched(t, log, 40), everyRoute, streaming(log)).sdk(t, goodToken)
	web, cache := instance("default", "web", otherID, 8080, "http"), instance("default", "cache", otherID, 6379)
	cache.JobID = "redis"
	services := new(changes)
	log.FollowServices(services)
	services.put(web, false) // before the allocation's first version
	put(t, log, 40, nil)
	services.put(cache, false)
	services.put(web, true)
	for query, want := range map[string][]string{
		"Service": {"ServiceRegistration " + web.ID, "ServiceRegistration " + cache.ID,
			"ServiceDeregistration " + web.ID},
		"Service:redis":       {"ServiceRegistration " + cache.ID},
		"Service:web":         {"ServiceRegistration " + web.ID, "ServiceDeregistration " + web.ID},
		"Service:" + cache.ID: {"ServiceRegistration " + cache.ID},
	} {
		topic, key, _ := strings.Cut(query, ":")
		if key == "" {
			key = "*"
		}
		topics := map[api.Topic][]string{api.Topic(topic): {key}}
		stream := must.Get(client.EventStream().Stream(t.Context(), topics, 1, nil))(t)
		var got []string
		for len(got) < len(want) {
			line := next(t, stream)
			for _, e := range line.Events {
				got = append(got, e.Type+" "+e.Key)
				s, err := e.Service()
				if err != nil || s.ID != e.Key || s.Namespace != "default" || e.Index != 40 ||
					!slices.Equal(e.FilterKeys, []string{s.JobID, s.ServiceName}) {
					t.Errorf("event %+v of %+v, %v", e, s, err)
				}
				if s.ID == web.ID && !cmp.Equal(s, web) {
					t.Errorf("payload %+v, want %+v", s, web)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("topic %s: %v, want %v", query, got, want)
		}
	}
}

// TestServiceEventsAfterTheLastIndex reach a client that resumes after it, since it is there when they happen; what
// there was does not.
func TestServiceEventsAfterTheLastIndex(t *testing.T) {
	log := events.New()
	client := newServer(t, touched(t, log, 40), everyRoute, streaming(log)).sdk(t, goodToken)
	web, cache := instance("default", "web", otherID, 8080, "http"), instance("default", "cache", otherID, 6379)
	services := new(changes)
	log.FollowServices(services)
	put(t, log, 40, nil)
	services.put(web, false)
	stream := must.Get(client.Raw().Response(streamPath+"?index=41", nil))(t)
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	for range 2 { // the second heartbeat follows what there was
		if !lines.Scan() || lines.Text() != "{}" {
			t.Fatalf("%q, %v, want a heartbeat", lines.Text(), lines.Err())
		}
	}
	services.put(cache, false)
	for lines.Scan() {
		if lines.Text() == "{}" {
			continue
		}
		if !strings.Contains(lines.Text(), cache.ID) {
			t.Errorf("streamed %s, want the registration of %s", lines.Text(), cache.ID)
		}
		return
	}
	t.Fatal("the stream has ended", lines.Err())
}

// streamed returns the lines of a stream with a query until the server stops: the indexes of its events, and what its
// other lines say.
func streamed(t *testing.T, s *server, token, query string) (all []string) {
	t.Helper()
	return streamedUntil(t, s, token, query, "")
}

// streamedUntil is streamed, for as long as the server needs, until a line that begins so.
func streamedUntil(t *testing.T, s *server, token, query, last string) (all []string) {
	t.Helper()
	c := s.dial(t)
	must.Get(io.WriteString(c.Conn, head("GET", streamPath+query, token, "")))(t)
	response := must.Get(http.ReadResponse(c.Reader, nil))(t)
	defer response.Body.Close()
	defer c.Close() // before: to close the body is to read it to its end, which does not come by itself
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	if lines.Scan() && last == "" { // the heartbeat, and with it the stream's place
		go s.stop()
	}
	for (last == "" || len(all) == 0 || !strings.HasPrefix(all[len(all)-1], last)) && lines.Scan() {
		var line struct {
			api.Events
			Error string
		}
		must.OK(t, json.Unmarshal(lines.Bytes(), &line))
		if line.Error != "" {
			all = append(all, line.Error)
			continue
		}
		if line.IsHeartbeat() { // one comes after the events that there were
			continue
		}
		all = append(all, fmt.Sprint(line.Index, " ", strings.Join(topicsOf(&line.Events), ", ")))
	}
	return all
}

// TestTopicsAreSelected: a line has the events that were asked for, by topic, by key and by what the caller may see.
func TestTopicsAreSelected(t *testing.T) {
	const (
		job, eval, alloc, node = "Job JobRegistered", "Evaluation EvaluationUpdated", "Allocation PlanResult",
			"Node NodeRegistration"
		pending = "Evaluation JobRegistered"
		all     = job + ", " + pending + ", " + eval + ", " + alloc
	)
	for query, want := range map[string][]string{
		"":                                  {"40 " + node + ", " + all, "40 " + node},
		"?topic=*":                          {"40 " + node + ", " + all, "40 " + node},
		"?topic=*:*":                        {"40 " + node + ", " + all, "40 " + node},
		"?topic=*:":                         {"40 " + node + ", " + all, "40 " + node},
		"?topic=Allocation&pretty":          {"40 " + alloc},
		"?topic=Allocation:*":               {"40 " + alloc},
		"?topic=Allocation:" + allocID:      {"40 " + alloc},
		"?topic=Allocation:demo":            {"40 " + alloc},
		"?topic=Allocation:" + allocID[:8]:  nil,
		"?topic=Allocation:no&topic=*:demo": {"40 " + all},
		"?topic=Job":                        {"40 " + job},
		"?topic=Job:demo":                   {"40 " + job},
		"?topic=Job:other":                  nil,
		"?topic=Evaluation:demo":            {"40 " + pending + ", " + eval},
		"?topic=Node":                       {"40 " + node, "40 " + node},
		"?topic=Node&namespace=prod":        {"40 " + node, "40 " + node}, // it is in none
		"?topic=Job&topic=Allocation":       {"40 " + job + ", " + alloc},
		"?topic=*:demo":                     {"40 " + all},
		"?topic=Service&topic=Operator":     nil,
		"?namespace=prod&topic=Job":         nil,
	} {
		t.Run(query, func(t *testing.T) {
			log := events.New()
			log.Begin()
			put(t, log, 40, nil)
			fake := newAlloc(t)
			fake.touch = func() bool { return false }
			s := newServerOf(t, auth.Owner{AllocationID: allocID, UID: peer.UID}, fake, everyRoute, streaming(log))
			if got := s.do(t, "PUT", "/v1/client/metadata", operator, `{"Meta":{"a":"b"}}`); got.Status != 200 {
				t.Fatal(got)
			}
			if got := streamed(t, s, operator, query); !slices.Equal(got, want) {
				t.Errorf("streamed %q, want %q", got, want)
			}
		})
	}
	log := events.New()
	log.Begin()
	put(t, log, 40, nil)
	handlers.AddNode(log)
	put(t, log, 41, nil)
	want := []string{"40 " + all, "41 Allocation AllocationUpdated"}
	if got := streamed(t, newServer(t, newAlloc(t), streaming(log)), goodToken, ""); !slices.Equal(got, want) {
		t.Errorf("a task is streamed %q, want %q", got, want)
	}
}

// TestResume: a client that resumes after the last index that it has seen misses nothing and gets nothing twice, or is
// told.
func TestResume(t *testing.T) {
	const lost = "events from index %d to %d may be lost: they are not kept any more"
	const ahead = "index %d has not come: the allocation has %d; events of an earlier life may be lost"
	updated := func(indexes ...int) (lines []string) {
		for _, i := range indexes {
			lines = append(lines, fmt.Sprint(i, " Allocation AllocationUpdated"))
		}
		return lines
	}
	for name, c := range map[string]struct {
		fill  func(t *testing.T, e *events.Log)
		index uint64
		want  []string
	}{
		"after the last":          {index: 43, want: nil},
		"at the last":             {index: 42, want: updated(42)},
		"after the first":         {index: 41, want: updated(41, 42)},
		"from the beginning":      {index: 1, want: updated(40, 41, 42)},
		"what comes next":         {index: 51, want: nil},
		"what was another life's": {index: 52, want: append([]string{fmt.Sprintf(ahead, 52, 50)}, updated(40, 41, 42)...)},
		"the highest": {index: 1<<64 - 1, want: append([]string{fmt.Sprintf(ahead, uint64(1<<64-1), 50)},
			updated(40, 41, 42)...)},
	} {
		t.Run(name, func(t *testing.T) {
			log := events.New()
			for index := range uint64(3) {
				put(t, log, 40+index, nil)
			}
			s := newServer(t, touched(t, log, 50), streaming(log))
			if got := streamed(t, s, goodToken, fmt.Sprintf("?index=%d", c.index)); !slices.Equal(got, c.want) {
				t.Errorf("streamed %q, want %q", got, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		registered bool
		index      uint64
		want       []string
	}{
		"with nothing missed":  {false, 41, updated(10040, 10041)},
		"with the last missed": {false, 40, updated(10040, 10041)},
		"with more missed":     {false, 39, append([]string{fmt.Sprintf(lost, 39, 39)}, updated(10040, 10041)...)},
		"for the first time":   {false, 0, updated(10040, 10041)},
		"with another job": {true, 40, append([]string{"10040 Job JobRegistered, Allocation PlanResult"},
			updated(10041)...)},
		"after what is unsaved": {false, 57, updated(10040, 10041)},
	} {
		t.Run("in another process, "+name, func(t *testing.T) {
			log := events.New()
			saved := *recordedAlloc()
			saved.ModifyIndex = 40
			first := saved
			first.ModifyIndex = 10040
			log.Resume(&saved, &first, c.registered)
			put(t, log, 10041, nil)
			s := newServer(t, touched(t, log, 10041), streaming(log))
			if got := streamed(t, s, goodToken, fmt.Sprintf("?index=%d", c.index)); !slices.Equal(got, c.want) {
				t.Errorf("streamed %q, want %q", got, c.want)
			}
		})
	}
	t.Run("after many", func(t *testing.T) {
		log := events.New()
		for index := range uint64(300) {
			put(t, log, 40+index, nil)
		}
		s := newServer(t, touched(t, log, 339), streaming(log))
		got := streamedUntil(t, s, goodToken, "?index=50", "339 ")
		if len(got) != 257 || got[0] != fmt.Sprintf(lost, 50, 83) || got[1] != "84 Allocation AllocationUpdated" {
			t.Errorf("streamed %d lines, the first %q, want what is lost and 256 from index 84 on", len(got),
				got[:min(2, len(got))])
		}
	})
}

// TestManyNotes: what happens faster than versions come is bounded, and lost to nobody who is connected.
func TestManyNotes(t *testing.T) {
	log := events.New()
	put(t, log, 40, nil)
	for range 1000 {
		handlers.AddNode(log)
	}
	put(t, log, 41, nil)
	s := newServerOf(t, auth.Owner{AllocationID: allocID, UID: peer.UID}, touched(t, log, 41), streaming(log))
	nodes := 0
	for _, line := range streamedUntil(t, s, operator, "?topic=Node&topic=Allocation", "41 ") {
		nodes += strings.Count(line, "Node ")
	}
	if nodes != 1000 {
		t.Errorf("%d events, want 1000", nodes)
	}
}

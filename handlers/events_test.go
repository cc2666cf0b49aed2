package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/handlers/internal/route"
	"taskapi/internal/must"
)

var _ interfaces.Sink = (*events.Log)(nil)

// streamAuthenticator is the fake authenticator with tokens that live on, until refuse says otherwise.
type streamAuthenticator struct {
	fakeAuthenticator
	expires int64
	refuse  func() *auth.Denial
}

// lasting is an expiry that no test sees.
const lasting = 1 << 40

func (d *streamAuthenticator) Authenticate(
	r *http.Request, owner auth.Owner, peer auth.Peer,
) (*auth.Principal, *auth.Denial) {
	principal, denial := d.fakeAuthenticator.Authenticate(r, owner, peer)
	if denial == nil && d.refuse != nil {
		denial = d.refuse()
	}
	if denial != nil {
		return nil, denial
	}
	principal.Claims.ExpiresAt = d.expires
	return principal, nil
}

func (d *streamAuthenticator) Recheck(_ *http.Request, p *auth.Principal, _ auth.Owner, _ auth.Peer) *auth.Denial {
	if time.Now().Unix() >= p.Claims.ExpiresAt {
		return forbidden
	}
	if d.refuse != nil {
		return d.refuse()
	}
	return nil
}

var _ route.Authenticator = (*streamAuthenticator)(nil)

// streaming serves events to tokens that last.
func streaming(log *events.Log) func(*handlers.Config) {
	return func(c *handlers.Config) { c.Authenticator, c.Events = &streamAuthenticator{expires: lasting}, log }
}

// recordedAlloc is the recorded allocation, decoded once: hundreds of its versions are put.
var recordedAlloc = sync.OnceValue(func() *api.Allocation {
	content, err := os.ReadFile("testdata/allocation.json")
	alloc := new(api.Allocation)
	if err == nil {
		err = json.Unmarshal(content, alloc)
	}
	if err != nil {
		panic(err)
	}
	return alloc
})

// put gives versions of the recorded allocation to the events, each with an index and a change.
func put(tb testing.TB, log *events.Log, index uint64, change func(*api.Allocation)) {
	tb.Helper()
	alloc := *recordedAlloc()
	alloc.ModifyIndex = index
	if change != nil {
		change(&alloc)
	}
	must.OK(tb, log.PutAllocs(tb.Context(), []*api.Allocation{&alloc}))
}

// TestEventsAsRecorded holds the stream against that of a Nomad agent, line by line.
func TestEventsAsRecorded(t *testing.T) {
	recording := must.Read(t, "testdata/event-stream.ndjson")
	lines := strings.Split(strings.TrimSpace(string(recording)), "\n")
	log := events.New()
	job := newAlloc(t).snapshot().Job
	for _, line := range lines[1:] {
		var decoded struct {
			Events []struct {
				Payload struct{ Allocation *api.Allocation }
			}
		}
		must.OK(t, json.Unmarshal([]byte(line), &decoded))
		alloc := decoded.Events[0].Payload.Allocation
		alloc.Job = job // left out of the recording's payload, as it has to be of ours
		must.OK(t, log.PutAllocs(t.Context(), []*api.Allocation{alloc, alloc}))
	}
	s := newServer(t, newAlloc(t), streaming(log), func(c *handlers.Config) {
		c.SigningKeyID = func() string { return signingKeyID }
	})
	c := s.dial(t)
	must.Get(io.WriteString(c.Conn, head("GET", streamPath+"?topic=Allocation", goodToken, "")))(t)
	response := must.Get(http.ReadResponse(c.Reader, nil))(t)
	if got := response.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type = %q", got)
	}
	scanner := bufio.NewScanner(response.Body)
	scanner.Buffer(nil, 1<<20)
	for i, want := range lines {
		if !scanner.Scan() {
			t.Fatalf("the stream ends before line %d: %v", i, scanner.Err())
		}
		if diff := cmp.Diff(tree(t, want), tree(t, scanner.Text())); diff != "" {
			t.Errorf("line %d: -recorded +ours\n%s", i, diff)
		}
	}
}

// next returns the next line of events that the SDK gives.
func next(tb testing.TB, stream <-chan *api.Events) *api.Events {
	tb.Helper()
	got, ok := <-stream
	if !ok || got.Err != nil {
		tb.Fatalf("the stream ended (%v): %+v", !ok, got)
	}
	return got
}

func TestSDKEvents(t *testing.T) {
	log := events.New()
	client := newServer(t, newAlloc(t), streaming(log)).sdk(t, goodToken)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	put(t, log, 40, nil)
	stream, err := client.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicAllocation: {"*"}}, 0,
		&api.QueryOptions{})
	must.OK(t, err)
	if got := next(t, stream); got.Index != 40 {
		t.Errorf("the event from before = %d, want 40", got.Index)
	}
	put(t, log, 41, func(a *api.Allocation) { a.DesiredStatus = "stop" })
	got := next(t, stream).Events[0]
	if got.Type != "AllocationUpdateDesiredStatus" || got.Key != allocID || got.Topic != api.TopicAllocation ||
		got.Index != 41 {
		t.Errorf("event = %+v", got)
	}
	alloc, err := got.Allocation()
	if err != nil || alloc.ID != allocID || alloc.DesiredStatus != "stop" || alloc.Job != nil ||
		len(alloc.TaskStates) != 2 {
		t.Errorf("allocation = %+v, %v", alloc, err)
	}
	put(t, log, 42, func(a *api.Allocation) {
		job := *a.Job
		a.DesiredStatus, job.JobModifyIndex, a.Job = "stop", new(uint64(42)), &job
	})
	if got := next(t, stream).Events[0]; got.Type != "PlanResult" {
		t.Errorf("another version of the job = %s, want PlanResult", got.Type)
	}
	put(t, log, 42, nil) // a version that is no event
	put(t, log, 43, func(a *api.Allocation) { a.ID = otherID })
	put(t, log, 44, nil)
	if got := next(t, stream); got.Index != 44 {
		t.Errorf("after a repetition and another's = %d, want 44", got.Index)
	}
}

// indexes returns those of the events of a stream, to its end; its heartbeats are left out.
func indexes(tb testing.TB, stream io.Reader) (all []uint64) {
	tb.Helper()
	decoder := json.NewDecoder(stream)
	for {
		var events api.Events
		if err := decoder.Decode(&events); err == io.EOF {
			return all
		} else if err != nil {
			tb.Fatal(err)
		}
		if !events.IsHeartbeat() {
			all = append(all, events.Index)
		}
	}
}

func TestEventStreamBadInput(t *testing.T) {
	s := newServer(t, newAlloc(t), streaming(events.New()))
	none := newServer(t, newAlloc(t))
	for _, c := range []struct {
		s             *server
		method, query string
		status        int
		want          string
	}{
		{s, "GET", "?topic=", 400, `topic must be *, a topic such as Allocation, or with a key Allocation:key, not ""`},
		{s, "GET", "?topic=:x", 400, `topic must be *, a topic such as Allocation, or with a key Allocation:key, not ":x"`},
		{s, "GET", "?topic=Job:a:b", 400,
			`topic must be *, a topic such as Allocation, or with a key Allocation:key, not "Job:a:b"`},
		{s, "GET", "?topic=x" + strings.Repeat("&topic=x", 64), 400, "topic may be given 64 times, not 65"},
		{s, "GET", "?index=18446744073709551616", 400,
			`index must be a whole number, as X-Nomad-Index gave it, not "18446744073709551616"`},
		{s, "GET", "?index=x", 400, `index must be a whole number, as X-Nomad-Index gave it, not "x"`},
		{s, "PUT", "", 405, "Invalid method"},
		{s, "HEAD", "", 200, ""},
		{none, "GET", "", 404, "resource not found"},
	} {
		if got := c.s.do(t, c.method, streamPath+c.query, goodToken, ""); got.Status != c.status || got.Body != c.want {
			t.Errorf("%s %s = %d %q, want %d %q", c.method, c.query, got.Status, got.Body, c.status, c.want)
		}
	}
	// A topic that is not the caller's to read is refused, also beside others.
	for _, query := range []string{"?topic=Node", "?topic=Job&topic=Operator", "?topic=NodePool", "?topic=Nope:x"} {
		if got := s.do(t, "GET", streamPath+query, goodToken, ""); got.Status != 403 {
			t.Errorf("%s = %d, want 403", query, got.Status)
		}
	}
	if got := s.do(t, "GET", streamPath, poorToken, ""); got.Status != 403 {
		t.Errorf("without read-job = %d, want 403", got.Status)
	}
}

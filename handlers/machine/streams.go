package machine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"taskapi/handlers/events"
	"taskapi/handlers/internal/route"
)

// maxLine bounds a line of an event stream: a batch of events, each of which may have a whole job.
const maxLine = 16 << 20

// events answers GET /v1/event/stream: the events of all allocations that run, and those of variables, each line with
// an index of the machine. With an index, only events from now on are sent.
func (h *handlers) events(_ context.Context, r *route.Request) (route.Answer, error) {
	open, err := h.Variables(r)
	if err != nil {
		return route.Answer{}, err
	}
	index, err := route.IndexOf(r.Query())
	if err != nil {
		return route.Answer{}, err
	}
	query := url.Values{"topic": events.WithoutVariables(r.Query()["topic"])}
	if namespace, ok := r.Query()["namespace"]; ok {
		query["namespace"] = namespace
	}
	if n := len(query["topic"]); n > events.MaxTopics {
		return route.Answer{}, route.Invalid("topic may be given %d times, not %d; * counts as %d", events.MaxTopics, n,
			len(events.WithoutVariables(nil)))
	}
	s := &merged{handlers: h, open: open, onlyNew: index > 0, followed: map[string]bool{}}
	if len(query["topic"]) > 0 {
		s.path = &url.URL{Path: "/v1/event/stream", RawQuery: query.Encode()}
	}
	return route.Answer{Stream: s.run, ContentType: route.JSONType}, nil
}

// merged is one stream of the events of all allocations.
type merged struct {
	*handlers
	path    *url.URL // of each allocation's events; nil for none
	open    func(context.Context) *events.VariableReader
	onlyNew bool // past events are left out

	mu       sync.Mutex // guards the fields below, and is held while a line is sent
	out      *route.StreamWriter
	last     uint64 // the index of the last line
	followed map[string]bool
}

func (s *merged) run(ctx context.Context, out *route.StreamWriter) {
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	s.out = out
	if variables := s.open(ctx); variables != nil {
		defer variables.Close()
		readers.Go(func() { s.followVariables(ctx, variables, cancel) })
	}
	if s.beat() != nil {
		return
	}
	first := true
	for ctx.Err() == nil {
		index := s.Machine.Index()
		all, err := s.Machine.Allocations(ctx)
		if err != nil {
			return
		}
		skip := s.onlyNew && first
		for _, alloc := range all {
			if s.path != nil && !alloc.ClientTerminalStatus() && s.begin(alloc.ID) {
				readers.Go(func() { s.follow(ctx, alloc.ID, skip, cancel) })
			}
		}
		first = false
		beat, end := context.WithTimeout(ctx, route.HeartbeatEvery)
		s.Machine.Wait(beat, index)
		overdue := beat.Err() != nil
		end()
		if overdue && ctx.Err() == nil && s.beat() != nil {
			return
		}
	}
}

func (s *merged) beat() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Heartbeat()
}

// followVariables sends the events of variables.
func (s *merged) followVariables(ctx context.Context, variables *events.VariableReader, leave func()) {
	defer leave()
	for ctx.Err() == nil {
		all, ok := variables.Events(s.Machine.Index())
		if !ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.out.LastWords(route.EndSlowConsumer)
			return
		}
		for _, e := range all {
			if s.send(slices.Concat([]byte("["), e, []byte("]"))) != nil {
				return
			}
		}
		select {
		case <-variables.More():
		case <-ctx.Done():
		}
	}
}

// begin marks an allocation as followed, and returns false if it was.
func (s *merged) begin(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followed[id] {
		return false
	}
	s.followed[id] = true
	return true
}

// follow sends the events of one allocation until its process exits or closes the stream. skipPast leaves out past
// events: a second empty object separates them from new ones.
func (s *merged) follow(ctx context.Context, id string, skipPast bool, leave func()) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followed, id)
	}()
	resp, err := s.Machine.Ask(ctx, id, &http.Request{Method: http.MethodGet, URL: s.path, Header: http.Header{}})
	if err != nil {
		return
	}
	defer resp.Body.Close()
	defer context.AfterFunc(ctx, func() { resp.Body.Close() })()
	if resp.StatusCode != http.StatusOK {
		return
	}
	beats := 0
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := lines.Bytes()
		if len(bytes.TrimSpace(line)) <= len("{}") {
			beats++
			continue
		}
		if skipPast && beats < 2 {
			continue
		}
		var batch struct {
			Index  uint64
			Events json.RawMessage
		}
		if json.Unmarshal(line, &batch) != nil || batch.Events == nil {
			continue // it says that events of one allocation are lost
		}
		if s.send(batch.Events) != nil {
			leave()
			return
		}
	}
}

// send sends events with the next index.
func (s *merged) send(events json.RawMessage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last+1, s.Machine.Index())
	line, err := json.Marshal(struct {
		Index  uint64
		Events json.RawMessage
	}{s.last, events})
	if err != nil {
		return err
	}
	return s.out.Line(line)
}

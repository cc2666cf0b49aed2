package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// heartbeatEvery is Nomad's.
const heartbeatEvery = 10 * time.Second

// heartbeat is the line of an idle stream.
var heartbeat = []byte("{}")

// The last lines of streams that the server ends.
const (
	endSlowConsumer = "events were lost, because they were not read in time: connect again"
	endUnauthorized = "the token is not valid any more: connect again with a new one"
)

// eventStream answers GET /v1/event/stream: a line for each event of the caller's allocation, from the index on, the oldest first; an empty
// object at the start and every ten seconds. The stream ends with its client and with the server, and, after a line that says so, with the
// token or when the client reads so slowly that events are lost.
func (a *API) eventStream(_ context.Context, r *request) (answer, error) {
	if a.config.Events == nil {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	want, err := subscriptionOf(query)
	if err != nil {
		return answer{}, err
	}
	want.maySee = r.Principal.MaySee
	s := &eventWriter{api: a, want: want, reader: a.config.Events.reader()}
	return answer{stream: s.run, contentType: jsonType}, nil
}

// subscription selects events.
type subscription struct {
	maySee    func(allocID string) bool
	namespace string // empty for that of the allocation
	index     uint64
	keys      []string // empty for all; otherwise of an allocation, a job or a deployment
}

// allKeys stands for every topic, and for every key of a topic.
const allKeys = "*"

// subscriptionOf reads topic, index and namespace. Without a topic it selects all. Allocation is the only topic here; another one is an
// error, since its client would wait without end.
func subscriptionOf(query url.Values) (want subscription, err error) {
	if want.index, err = indexOf(query); err != nil {
		return want, err
	}
	want.namespace = query.Get("namespace")
	for _, topic := range query["topic"] {
		name, key, _ := strings.Cut(topic, ":")
		if name != string(api.TopicAllocation) && name != allKeys {
			return want, invalid("topic must be Allocation, Allocation:key or *, not %s: there are no other events here", clip(topic))
		}
		if key == "" {
			key = allKeys
		}
		want.keys = append(want.keys, key)
	}
	if slices.Contains(want.keys, allKeys) {
		want.keys = nil
	}
	return want, nil
}

func (s *subscription) matches(alloc *api.Allocation) bool {
	if !s.maySee(alloc.ID) || alloc.ModifyIndex < s.index || !inNamespace(alloc, s.namespace) {
		return false
	}
	return len(s.keys) == 0 || slices.ContainsFunc(s.keys, func(key string) bool {
		return key != "" && (key == alloc.ID || key == alloc.JobID || key == alloc.DeploymentID)
	})
}

// eventWriter is one stream of events.
type eventWriter struct {
	api    *API
	want   subscription
	reader *reader
}

// run writes events until the stream has to end.
func (s *eventWriter) run(ctx context.Context, out *streamWriter) {
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	err := out.heartbeat(heartbeat)
	for err == nil {
		var more <-chan struct{}
		if more, err = s.deliver(out); err != nil {
			break
		}
		select {
		case <-more:
		case <-beat.C:
			err = out.heartbeat(heartbeat)
		case <-ctx.Done():
			if err = context.Cause(ctx); errors.Is(err, errDraining) {
				_, err = s.deliver(out) // the last events say how it ended
				if err == nil {
					return
				}
			}
		}
	}
	switch {
	case errors.Is(err, errSlowConsumer):
		s.end(out, endSlowConsumer)
	case denied(err):
		s.end(out, endUnauthorized)
	}
}

// errSlowConsumer ends a stream from which unread events were dropped.
var errSlowConsumer = errors.New("slow consumer")

// deliver writes what is new, and returns what is closed when there is more. Errors: those of out, errSlowConsumer.
func (s *eventWriter) deliver(out *streamWriter) (more <-chan struct{}, err error) {
	batch, more, ok := s.reader.read()
	if !ok {
		return nil, errSlowConsumer
	}
	for _, e := range batch {
		if !s.want.matches(e.alloc) {
			continue
		}
		line, err := s.api.encodeEvent(e)
		if err != nil {
			s.api.config.Logger.Error("event not sent", "alloc", e.alloc.ID, "index", e.alloc.ModifyIndex, "error", err)
			continue
		}
		if err := out.line(line.bytes); err != nil {
			return nil, err
		}
	}
	return more, nil
}

// end writes the last line. Programs take it for a heartbeat before the end; people read the reason.
func (s *eventWriter) end(out *streamWriter, why string) {
	if line, err := json.Marshal(struct{ Error string }{why}); err == nil {
		out.lastLine(line)
	}
}

// wireEvents is one line of the stream: the events of one index, which is one event here.
type wireEvents struct {
	Index  uint64
	Events []wireEvent
}

type wireEvent struct {
	Topic      string
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    wirePayload
}

type wirePayload struct{ Allocation *wireAllocation }

// encodeEvent returns the event's line. That of the latest event is kept, for all streams.
func (a *API) encodeEvent(e *event) (*body, error) {
	keyID := a.keyID()
	return a.lastEvent.get(cacheKey{e.alloc.ID, e.alloc.ModifyIndex, keyID}, func() any { return wireEventsOf(e, keyID) })
}

func wireEventsOf(e *event, keyID string) wireEvents {
	alloc := wireAllocationOf(e.alloc, keyID)
	alloc.Job = nil // Nomad leaves it out
	filterKeys := []string{alloc.JobID}
	if alloc.DeploymentID != "" {
		filterKeys = append(filterKeys, alloc.DeploymentID)
	}
	return wireEvents{Index: alloc.ModifyIndex, Events: []wireEvent{{
		Topic: string(api.TopicAllocation), Type: e.kind, Key: alloc.ID, Namespace: alloc.Namespace,
		FilterKeys: filterKeys, Index: alloc.ModifyIndex, Payload: wirePayload{alloc},
	}}}
}

package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// heartbeatEvery is Nomad's.
const heartbeatEvery = 10 * time.Second

// heartbeat is the line of an idle stream.
var heartbeat = []byte("{}")

// The last lines of streams that the server ends.
const (
	endSlowConsumer = "events were lost, because they were not read in time: connect again"
	endDraining     = "the server stops, and there was more: connect again"
	endUnauthorized = "the token is not valid any more: connect again with a new one"
)

// eventStream answers GET /v1/event/stream: a line for each event of the caller's allocation, from the index on, the oldest first; an empty
// object at the start, after the events that there were, and every ten seconds. When events from the index on are lost, a line says so before
// the others. The stream ends with its client and with the server, and, after a line that says so, with the token or when the client reads so
// slowly that events are lost.
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
	want.caller = r.Principal
	s := &eventWriter{api: a, want: want}
	if alloc, ok := r.visible(); ok {
		s.current = alloc.Snapshot().ModifyIndex
	}
	return answer{stream: s.run, contentType: jsonType}, nil
}

// subscription selects events.
type subscription struct {
	caller    *auth.Principal
	namespace string // empty for that of the allocation
	index     uint64
	topics    map[api.Topic][]string // the keys of each; empty for all topics
}

// allKeys stands for every topic, and for every key of a topic.
const allKeys = "*"

// maxTopics bounds the topics of a subscription: Nomad has some twenty.
const maxTopics = 64

// subscriptionOf reads topic, index and namespace. Without a topic it selects all. One that has no events here is silent, as in Nomad.
func subscriptionOf(query url.Values) (want subscription, err error) {
	if want.index, err = indexOf(query); err != nil {
		return want, err
	}
	if n := len(query["topic"]); n > maxTopics {
		return want, invalid("topic may be given %d times, not %d", maxTopics, n)
	}
	want.namespace, want.topics = query.Get("namespace"), map[api.Topic][]string{}
	for _, topic := range query["topic"] {
		name, key, _ := strings.Cut(topic, ":")
		if name == "" || strings.Contains(key, ":") {
			return want, invalid("topic must be *, a topic such as Allocation, or with a key Allocation:key, not %s", clip(topic))
		}
		want.topics[api.Topic(name)] = append(want.topics[api.Topic(name)], cmp.Or(key, allKeys))
	}
	return want, nil
}

// matches reports whether an event of the caller's allocation is one that the subscription selects.
func (s *subscription) matches(n note) bool {
	switch {
	case !s.caller.Capabilities.Has(cmp.Or(n.needs, auth.ReadJob)),
		n.namespace != "" && !inQueriedNamespace(s.namespace, n.namespace):
		return false
	case len(s.topics) == 0:
		return true
	}
	for _, keys := range [][]string{s.topics[allKeys], s.topics[n.topic]} {
		for _, key := range keys {
			if key == allKeys || key == n.key || slices.Contains(n.filterKeys, key) {
				return true
			}
		}
	}
	return false
}

// eventWriter is one stream of events.
type eventWriter struct {
	api     *API
	want    subscription
	current uint64 // the allocation's index when the stream was requested
	reader  *reader
}

// begin takes the stream's place among the events, and says what is lost of those from the index on.
func (s *eventWriter) begin(out *streamWriter) error {
	index := s.want.index
	var lost uint64
	s.reader, lost = s.api.config.Events.reader(index)
	switch {
	case lost > 0:
		return s.say(out.line, fmt.Sprintf("events from index %d to %d may be lost: they are not kept any more", index, lost))
	case index > s.current+1: // which this allocation has not had: it was another life's
		s.want.index = 0
		return s.say(out.line, fmt.Sprintf("index %d has not come: the allocation has %d; events of an earlier life may be lost", index, s.current))
	}
	return nil
}

// run writes events until the stream has to end.
func (s *eventWriter) run(ctx context.Context, out *streamWriter) {
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	err := out.heartbeat(heartbeat)
	if err == nil {
		err = s.begin(out)
	}
	for caughtUp := false; err == nil; {
		var more <-chan struct{}
		if more, err = s.deliver(out); err != nil {
			break
		}
		if !caughtUp {
			caughtUp = true
			if err = out.heartbeat(heartbeat); err != nil {
				break
			}
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
		_ = s.say(lastLine(out), endSlowConsumer)
	case denied(err):
		_ = s.say(lastLine(out), endUnauthorized)
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
	for i, e := range batch {
		isNew := e.kind == "" && s.reader.next-uint64(len(batch)-i) >= s.reader.live // whatever its index, which is the latest version's
		if e.alloc.ModifyIndex < s.want.index && !isNew || !s.want.caller.MaySee(e.alloc.ID) {
			continue
		}
		line, err := s.line(e)
		if err != nil {
			s.api.config.Logger.Error("event not sent", "alloc", e.alloc.ID, "index", e.alloc.ModifyIndex, "error", err)
		}
		if line == nil {
			continue
		}
		if err := out.line(line); err != nil {
			return nil, err
		}
	}
	return more, nil
}

// line returns the line of an event, nil when the subscription wants nothing of it.
func (s *eventWriter) line(e *event) ([]byte, error) {
	encoded, err := s.api.encodeEvent(e)
	if err != nil {
		return nil, err
	}
	return encoded.lineFor(&s.want)
}

// say writes what people are to know. Programs take it for a heartbeat.
func (s *eventWriter) say(write func([]byte) error, what string) error {
	line, err := json.Marshal(struct{ Error string }{what})
	if err != nil {
		return err
	}
	return write(line)
}

// lastLine returns what writes the line that says why the stream ends.
func lastLine(out *streamWriter) func([]byte) error {
	return func(line []byte) error {
		out.lastLine(line)
		return nil
	}
}

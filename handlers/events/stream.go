package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Config has what the route of the event stream needs.
type Config struct {
	Events    *Log                                         // nil for none: the stream is then NoRoute
	Variables *variables.Feed                              // nil for none
	KeyID     func() string                                // of the key that signs new identities, shown in the stream
	Node      func(of *api.Allocation) (*wire.Node, error) // describes the machine that runs the allocation
	Logger    *slog.Logger                                 // logs events that can't be encoded
}

// Routes returns the row of the event stream.
func Routes(c Config) []route.Route {
	return []route.Route{
		route.Read("/v1/event/stream", auth.ReadJob, c.stream, "Streams the events of the caller's allocation.").
			Or(auth.NodeRead).Or(auth.VariablesRead).Answering(route.Stream).Given(c.Events != nil, apierror.NoRoute),
	}
}

// stream answers GET /v1/event/stream: a line for each event of the caller's allocation, from the index on, the oldest
// first. It sends an empty object at the start, after the past events, and every ten seconds. When events from the
// index on are lost, a line says so before the others. The stream ends with its client and with the server. It also
// ends, after a line that says so, when the token is no longer valid, and when the client reads so slowly that events
// are lost.
func (c Config) stream(_ context.Context, r *route.Request) (route.Answer, error) {
	want, err := c.subscription(r)
	if err != nil {
		return route.Answer{}, err
	}
	s := &eventWriter{Config: c, want: want}
	if alloc, ok := r.Visible(); ok {
		current := alloc.Snapshot()
		s.current, s.home = current.ModifyIndex, current.Namespace
	}
	return route.Answer{Stream: s.run, ContentType: route.JSONType}, nil
}

// subscription returns what a request selects. Errors: the caller may not read a topic, or the query is wrong.
func (c Config) subscription(r *route.Request) (want subscription, err error) {
	if want, err = subscriptionOf(r.Query()); err != nil {
		return want, err
	}
	want.caller = r.Principal
	if len(want.topics) == 0 {
		return want, c.mayRead(r, allKeys)
	}
	for topic := range want.topics {
		if err := c.mayRead(r, topic); err != nil {
			return want, err
		}
	}
	return want, nil
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

// MaxTopics bounds the topics of a subscription: Nomad has some twenty.
const MaxTopics = 64

// mayRead returns an error for a topic that the caller may not read. As in Nomad, the topics of a cluster's own
// objects, and those that are unknown, are the operator's: for the operator they are silent. allKeys gives a caller the
// events that it may see, and is refused to one who may see none.
func (c Config) mayRead(r *route.Request, topic api.Topic) error {
	switch topic {
	case allKeys:
		if c.Variables != nil && r.Principal.SearchesVariables() {
			return nil
		}
		return r.Need(auth.ReadJob | auth.NodeRead)
	case topicVariable:
		return c.searchable(r)
	case api.TopicJob, api.TopicEvaluation, api.TopicDeployment, api.TopicAllocation, api.TopicService:
		return r.Need(auth.ReadJob)
	case api.TopicNode:
		return r.Need(auth.NodeRead)
	}
	return r.Need(auth.OperatorOnly)
}

// subscriptionOf reads topic, index and namespace. Without a topic it selects all.
func subscriptionOf(query url.Values) (want subscription, err error) {
	if want.index, err = route.IndexOf(query); err != nil {
		return want, err
	}
	if n := len(query["topic"]); n > MaxTopics {
		return want, route.Invalid("topic may be given %d times, not %d", MaxTopics, n)
	}
	want.namespace, want.topics = query.Get("namespace"), map[api.Topic][]string{}
	for _, topic := range query["topic"] {
		name, key, _ := strings.Cut(topic, ":")
		if name == "" || strings.Contains(key, ":") {
			return want, route.Invalid("topic must be *, a topic such as Allocation, or with a key Allocation:key, not %s",
				route.Clip(topic))
		}
		want.topics[api.Topic(name)] = append(want.topics[api.Topic(name)], cmp.Or(key, allKeys))
	}
	return want, nil
}

// matches reports whether an event of the caller's allocation is one that the subscription selects.
func (s *subscription) matches(n note) bool {
	switch {
	case !s.caller.Capabilities.Has(cmp.Or(n.needs, auth.ReadJob)),
		n.Namespace != "" && !route.InNamespace(s.namespace, n.Namespace):
		return false
	case len(s.topics) == 0:
		return true
	}
	for _, keys := range [][]string{s.topics[allKeys], s.topics[n.Topic]} {
		for _, key := range keys {
			if key == allKeys || key == n.Key || slices.Contains(n.FilterKeys, key) {
				return true
			}
		}
	}
	return false
}

// eventWriter is one stream of events.
type eventWriter struct {
	Config
	want    subscription
	current uint64 // the allocation's index when the stream was requested, and then the last that was read
	home    string // the allocation's namespace
	reader  *reader

	variables *VariableReader // nil for none
}

// begin takes the stream's place among the events, and tells the client which events from the index on are lost.
func (s *eventWriter) begin(out *route.StreamWriter) error {
	index := s.want.index
	var lost uint64
	s.reader, lost = s.Events.reader(index)
	switch {
	case lost > 0:
		return out.Say(fmt.Sprintf("events from index %d to %d may be lost: they are not kept any more", index, lost))
	case index > s.current+1: // of another life: this allocation has not had it
		s.want.index = 0
		return out.Say(fmt.Sprintf("index %d has not come: the allocation has %d; events of an earlier life may be lost",
			index, s.current))
	}
	return nil
}

// run writes events until the stream has to end.
func (s *eventWriter) run(ctx context.Context, out *route.StreamWriter) {
	beat := time.NewTicker(route.HeartbeatEvery)
	defer beat.Stop()
	defer s.Events.read(ctx)()
	s.variables = s.openVariables(ctx, s.want, s.home)
	defer s.variables.Close()
	err := out.Heartbeat()
	if err == nil {
		err = s.begin(out)
	}
	for caughtUp := false; err == nil; {
		if err = s.deliver(out); err != nil {
			break
		}
		if !caughtUp {
			caughtUp = true
			if err = out.Heartbeat(); err != nil {
				break
			}
		}
		select {
		case <-s.reader.changed:
		case <-s.reader.services:
		case <-s.variables.More():
		case <-beat.C:
			err = out.Heartbeat()
		case <-ctx.Done():
			if err = context.Cause(ctx); errors.Is(err, route.ErrDraining) {
				if err = s.deliver(out); err == nil { // the last events say how it ended
					return
				}
			}
		}
	}
	switch {
	case errors.Is(err, errSlowConsumer):
		out.LastWords(route.EndSlowConsumer)
	case route.Denied(err):
		out.LastWords(route.EndUnauthorized)
	}
}

// errSlowConsumer ends a stream from which unread events were dropped.
var errSlowConsumer = errors.New("slow consumer")

// deliver writes the new events. Errors: those of out, errSlowConsumer.
func (s *eventWriter) deliver(out *route.StreamWriter) error {
	batch, ok := s.reader.read()
	if !ok {
		return errSlowConsumer
	}
	for i, e := range batch {
		s.current = max(s.current, e.alloc.ModifyIndex)
		number := s.reader.next - uint64(len(batch)-i)
		isNew := e.kind == "" && number >= s.reader.live // whatever its index, which is the latest version's
		if e.alloc.ModifyIndex < s.want.index && !isNew || !s.want.caller.MaySee(e.alloc.ID) {
			continue
		}
		var line []byte // nil when the subscription wants nothing of it
		encoded, err := s.encode(e)
		if err == nil {
			line, err = encoded.lineFor(&s.want)
		}
		if err != nil {
			s.Logger.Error("event not sent", "alloc", e.alloc.ID, "index", e.alloc.ModifyIndex, "error", err)
		}
		if line == nil {
			continue
		}
		if err := out.Line(line); err != nil {
			return err
		}
	}
	return s.writeVariables(out)
}

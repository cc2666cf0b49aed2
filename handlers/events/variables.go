package events

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
)

// topicVariable is a topic that the SDK does not name.
const topicVariable = api.Topic("Variable")

// VariableReader is the place of one stream among the changes of variables, from its beginning on. Each caller gets
// those of the variables that it may list. A nil reader has none.
type VariableReader struct {
	feed *variables.Feed
	want subscription
	home string // the namespace without one in the query
	next uint64
	more <-chan struct{} // closed when there are more changes than the last read has returned
	done func()
}

// searchable returns an error for a caller who may not read the topic Variable, as for the search of variables.
func (c Config) searchable(r *route.Request) error {
	switch {
	case c.Variables == nil:
		return apierror.New(apierror.NotImplemented, "this program keeps no variables")
	case r.Principal.SearchesVariables():
		return nil
	}
	if err := r.Need(auth.VariablesRead); err != nil {
		return err
	}
	return r.Need(auth.ReadJob)
}

// OfVariables returns a function that opens a reader of the changes that a request for a stream selects, nil if there
// are none. Errors: the caller may not read a topic, or the query is wrong.
func (c Config) OfVariables(r *route.Request) (open func(context.Context) *VariableReader, err error) {
	want, err := c.subscription(r)
	if err != nil {
		return nil, err
	}
	home := ""
	if alloc, ok := r.Visible(); ok {
		home = alloc.Snapshot().Namespace
	}
	return func(ctx context.Context) *VariableReader { return c.openVariables(ctx, want, home) }, nil
}

func (c Config) openVariables(ctx context.Context, want subscription, home string) *VariableReader {
	if c.Variables == nil || !want.caller.SearchesVariables() ||
		len(want.topics) > 0 && want.topics[allKeys] == nil && want.topics[topicVariable] == nil {
		return nil
	}
	v := &VariableReader{feed: c.Variables, want: want, home: home, done: c.Variables.Read(ctx)}
	_, v.next, v.more = v.feed.Since(math.MaxUint64)
	return v
}

// WithoutVariables returns topics of a query in which no event of a variable is selected, and everything else is; none
// if only variables are.
func WithoutVariables(topics []string) (others []string) {
	if len(topics) == 0 {
		topics = []string{allKeys}
	}
	for _, topic := range topics {
		switch name, key, found := strings.Cut(topic, ":"); {
		case name == string(topicVariable):
		case name == allKeys:
			for _, other := range topicsOfAllocations {
				if found {
					other += api.Topic(":" + key)
				}
				others = append(others, string(other))
			}
		default:
			others = append(others, topic)
		}
	}
	return others
}

// topicsOfAllocations have all events but those of variables.
var topicsOfAllocations = []api.Topic{
	api.TopicJob, api.TopicEvaluation, api.TopicDeployment, api.TopicAllocation, api.TopicService, api.TopicNode,
}

// More returns a channel that is closed when there are more changes than the last Events has returned; nil for a nil
// reader.
func (v *VariableReader) More() <-chan struct{} {
	if v == nil {
		return nil
	}
	return v.more
}

// Close ends the reader.
func (v *VariableReader) Close() {
	if v != nil {
		v.done()
	}
}

// Events returns the events since the last call, in JSON, as those of an index. ok is false for a slow reader: changes
// that it has not read are not kept any more.
func (v *VariableReader) Events(index uint64) (events [][]byte, ok bool) {
	if v == nil {
		return nil, true
	}
	changes, next, more := v.feed.Since(v.next)
	if next-uint64(len(changes)) > v.next {
		return nil, false
	}
	v.next, v.more = next, more
	for _, c := range changes {
		n := variableNote(c)
		if n.Index = index; !v.selects(n) {
			continue
		}
		if !v.want.caller.Operator() && n.Payload.Metadata.Lock != nil { // as in lists
			metadata := *n.Payload.Metadata
			metadata.Lock = nil
			n.Payload.Metadata = &metadata
		}
		encoded, _ := json.Marshal(n) // strings and numbers can always be encoded
		events = append(events, encoded)
	}
	return events, true
}

// selects reports whether the stream has an event. Nothing is encoded of a variable that the caller may not list.
func (v *VariableReader) selects(n note) bool {
	in := v.want.namespace
	if in == "" {
		in = v.home
	}
	return v.want.matches(n) && route.InNamespace(in, n.Namespace) &&
		v.want.caller.MayVariable(n.Namespace, n.Key, auth.VariableList)
}

func variableNote(c *variables.Change) note {
	m := c.Value()
	return note{
		Topic: topicVariable, Type: eventVariable, Key: m.Path, Namespace: m.Namespace, needs: auth.VariablesRead,
		Payload: wirePayload{Deleted: new(c.Gone), Metadata: m},
	}
}

// writeVariables writes the new events of variables, a line each. Errors: those of out, errSlowConsumer.
func (s *eventWriter) writeVariables(out *route.StreamWriter) error {
	events, ok := s.variables.Events(s.current)
	if !ok {
		return errSlowConsumer
	}
	for _, e := range events {
		line := slices.Concat(fmt.Appendf(nil, `{"Index":%d,"Events":[`, s.current), e, []byte("]}"))
		if err := out.Line(line); err != nil {
			return err
		}
	}
	return nil
}

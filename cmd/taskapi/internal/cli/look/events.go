package look

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

func Events(w base.Environment) *cobra.Command {
	s := &eventsStream{environment: w}
	cmd := base.OnTarget(w, base.ToChange, &cobra.Command{
		Use:   "events [flags] [ALLOC]",
		Short: "Print Nomad's event stream of an allocation",
		Long: `Prints an allocation's events as Nomad's API streams them, a line for each: the latest few hundred, and with
--follow each new one until the allocation ends. When the allocation's taskapi is replaced, or the token is renewed,
the stream goes on where it was. If that taskapi has exited, --follow waits for another one as long as tasks run.
` + base.AllocArgs + `

--json prints the lines of GET /v1/event/stream as they are; --template is applied to each event, the SDK's Event.
'taskapi attach' prints in words what happens to the tasks.`,
		Example: `  taskapi events
  taskapi events -f --topic Allocation --topic Service hello
  taskapi events -t '{{.Index}} {{.Topic}} {{.Type}}'`,
	}, func(ctx context.Context, found base.Target) error {
		ctx, release := base.UntilSignal(ctx)
		defer release()
		s.target = found
		if err := s.run(ctx); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
	base.AddOutput(cmd, &s.out)
	f := cmd.Flags()
	f.BoolVarP(&s.follow, "follow", "f", false, "print events as they happen, until the allocation ends or Ctrl-C")
	f.StringArrayVar(&s.topics, "topic", nil, "print events of this `TOPIC` alone; may be repeated")
	f.Uint64Var(&s.next, "index", 0, "print events from this index on")
	parse := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		for _, topic := range s.topics {
			if !slices.Contains(eventTopics, topic) {
				return base.Usagef("--topic %q is none of %s", topic, strings.Join(eventTopics, ", "))
			}
		}
		return parse(cmd, args)
	}
	// the flag has just been added
	_ = cmd.RegisterFlagCompletionFunc("topic", cobra.FixedCompletions(eventTopics, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// eventTopics are those that an allocation's stream may have.
var eventTopics = []string{string(api.TopicAllocation), string(api.TopicJob), string(api.TopicEvaluation),
	string(api.TopicDeployment), string(api.TopicNode), string(api.TopicService)}

// eventsStream is taskapi events.
type eventsStream struct {
	target      base.Target
	environment base.Environment
	out         base.OutputFlags
	follow      bool
	topics      []string

	alone bool                      // its taskapi has exited, which has been said
	next  uint64                    // the index from which on events are wanted
	had   eventsHad                 // those that have come, of that index and of others
	last  *api.Allocation           // as the last event of it had it
	shown map[string]*api.TaskEvent // the last event of each task
}

// eventLine is a line of the stream. Error is the last line's.
type eventLine struct {
	Index  uint64
	Events []*api.Event
	Error  string `json:",omitempty"`
}

// reconnectPause is the pause before a stream that has ended is opened again: there may be no event for long.
const reconnectPause = 100 * time.Millisecond

// run prints events until those that there are have been printed or, when they are followed, until the allocation has
// ended.
func (s *eventsStream) run(ctx context.Context) error {
	c := s.target.Client()
	defer c.Close()
	created := int64(0)
	for {
		alloc, _, err := c.Allocation(ctx)
		if err == nil {
			if created != 0 && created != alloc.CreateTime { // it has been replaced, and its successor counts from the beginning
				s.next, s.had, s.last, s.shown = 0, eventsHad{}, nil, nil
			}
			created = alloc.CreateTime
			var done bool
			if done, err = s.read(ctx, c, alloc.ModifyIndex); done {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
		case created == 0 || !errors.Is(err, client.ErrNoAnswer) && !client.Refused(err):
			return s.target.Explain(ctx, c, err)
		default:
			if ended, err := s.ended(ctx, c); ended || err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectPause):
		}
	}
}

// ended finds out why a stream that was followed can't be opened any more: the allocation has ended, or nobody runs it.
// While its tasks run, another taskapi may still resume it.
func (s *eventsStream) ended(ctx context.Context, c *client.Client) (bool, error) {
	switch found := c.Locate(ctx, client.Following); found.Holder {
	case client.Serving:
		s.alone = false
		return false, nil
	case client.Ended:
		return true, s.printEnd(found.Alloc)
	default:
		why := s.target.ErrUnserved(found)
		if found.Holder != client.Nobody || !s.follow || !allocrunner.TasksRunning(s.target.Layout.Alloc(s.target.ID)) {
			return true, why
		}
		if !s.alone {
			s.environment.Warnf("%v; waiting for another one", why)
		}
		s.alone = true
		return false, nil
	}
}

// printEnd prints the last event of an allocation that ended before the stream could be opened again, unless it has
// come.
func (s *eventsStream) printEnd(alloc *api.Allocation) error {
	if alloc.ModifyIndex <= s.next {
		return nil
	}
	s.environment.Warnf("events from index %d to %d may be lost: the allocation ended before they were read", s.next,
		alloc.ModifyIndex)
	last := *alloc
	last.Job = nil // as the stream has it
	raw, err := json.Marshal(eventLine{Index: last.ModifyIndex, Events: []*api.Event{{
		Topic: api.TopicAllocation, Type: "AllocationUpdated", Key: last.ID, FilterKeys: []string{last.JobID},
		Index: last.ModifyIndex, Payload: map[string]any{"Allocation": last},
	}}})
	if err != nil {
		return fmt.Errorf("encode the last event: %w", err)
	}
	_, err = s.printLines(bytes.NewReader(raw))
	return err
}

// read opens the stream and prints its events until it ends, which is no error, or until it has had those that there
// are.
func (s *eventsStream) read(ctx context.Context, c *client.Client, latest uint64) (done bool, err error) {
	if !s.follow && s.next > latest {
		return true, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.Do(ctx, http.MethodGet, fmt.Sprintf("/v1/event/stream?topic=*&index=%d", s.next), nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // the status says enough
		return false, &client.StatusError{Status: resp.StatusCode, Message: string(bytes.TrimSpace(reason))}
	}
	return s.printLines(resp.Body)
}

// printLines prints the events of a stream that have not come before.
func (s *eventsStream) printLines(stream io.Reader) (done bool, err error) {
	beats := 0 // the first begins the stream, the second follows what there was
	for lines := json.NewDecoder(stream); ; {
		var raw json.RawMessage
		var line eventLine
		if lines.Decode(&raw) != nil || json.Unmarshal(raw, &line) != nil {
			return false, nil //nolint:nilerr // the stream has ended
		}
		if strings.Contains(line.Error, "lost") {
			s.environment.Warnf("%s", linewriter.OneLine(line.Error))
		}
		if len(line.Events) == 0 && line.Error == "" {
			if beats++; beats > 1 && !s.follow { // no index says that: the last may have several lines
				return true, nil
			}
		}
		if line.Index < s.next && beats < 2 || len(line.Events) == 0 {
			continue
		}
		s.next = max(s.next, line.Index)
		if err := s.print(raw, line); err != nil {
			return true, err
		}
	}
}

// print prints the events of a line that are wanted and have not come before.
func (s *eventsStream) print(raw json.RawMessage, line eventLine) error {
	wanted := slices.DeleteFunc(slices.Clone(line.Events), func(e *api.Event) bool {
		return s.had.before(e) || len(s.topics) > 0 && !slices.Contains(s.topics, string(e.Topic))
	})
	out := s.environment.Stdout
	switch {
	case len(wanted) == 0:
		return nil
	case s.out.JSON && len(wanted) == len(line.Events):
		return output.JSON(out, raw)
	case s.out.JSON:
		return json.NewEncoder(out).Encode(eventLine{Index: line.Index, Events: wanted})
	}
	for _, e := range wanted {
		if s.out.Parsed != nil {
			if err := base.AsTemplateError(s.out.Parsed.Write(out, e)); err != nil {
				return err
			}
			continue
		}
		if _, err := fmt.Fprintln(out, s.line(e)); err != nil {
			return err
		}
	}
	return nil
}

// line returns an event as a line for people: when, which, and what of it is new.
func (s *eventsStream) line(e *api.Event) string {
	at, about := "-", output.ShortID(e.Key)
	for _, object := range e.Payload {
		fields, _ := object.(map[string]any)
		for _, field := range []string{"ModifyTime", "SubmitTime", "CreateTime"} {
			if ns, ok := fields[field].(float64); ok && ns > 0 && at == "-" {
				at = output.Date(time.Unix(0, int64(ns)))
			}
		}
		if status, ok := fields["Status"].(string); ok && status != "" {
			about += "  " + status
		}
	}
	if alloc, err := e.Allocation(); err == nil && alloc != nil {
		about += "  " + s.changed(alloc)
	}
	if service, err := e.Service(); err == nil && service != nil {
		about = fmt.Sprintf("%s  %s  %s", service.ServiceName, base.AddressOf(service), output.ShortID(service.AllocID))
	}
	return linewriter.OneLine(fmt.Sprintf("%-19s  %5d  %-10s  %-29s  %s", at, e.Index, e.Topic, e.Type, about))
}

// changed says what an allocation's version has that the one before it had not.
func (s *eventsStream) changed(alloc *api.Allocation) string {
	var what []string
	if s.last == nil || s.last.ClientStatus != alloc.ClientStatus {
		what = append(what, alloc.ClientStatus)
	}
	if s.last != nil && s.last.DesiredStatus != alloc.DesiredStatus {
		what = append(what, "desired: "+alloc.DesiredStatus)
	}
	if is, ok := base.HealthOf(alloc); ok && s.last != nil {
		if was, ok := base.HealthOf(s.last); !ok || was != is {
			what = append(what, is)
		}
	}
	if s.shown == nil {
		s.shown = map[string]*api.TaskEvent{}
	}
	for _, task := range slices.Sorted(maps.Keys(alloc.TaskStates)) {
		events := alloc.TaskStates[task].Events
		for _, e := range follow.EventsAfter(s.shown[task], events) {
			what = append(what, task+" "+e.Type)
		}
		if len(events) > 0 {
			s.shown[task] = events[len(events)-1]
		}
	}
	s.last = alloc
	return strings.Join(what, ", ")
}

// maxHad is how many events are remembered at least: more than a stream begins with.
const maxHad = 8192

// eventsHad remembers the latest events of a stream. A stream that is opened again repeats the events of the last
// index, and another process may leave some out and add others: neither index nor count tells which ones are new.
type eventsHad struct {
	latest, earlier map[[sha256.Size]byte]struct{}
}

// before reports whether the event has come before, and remembers it.
func (h *eventsHad) before(e *api.Event) bool {
	what := *e
	if what.Topic == api.TopicAllocation { // each version has one event, whose type another process does not know
		what.Type, what.Payload = "", nil
	}
	text, _ := json.Marshal(what) // it comes from JSON
	id := sha256.Sum256(text)
	_, latest := h.latest[id]
	_, earlier := h.earlier[id]
	if latest || earlier {
		return true
	}
	if h.latest == nil || len(h.latest) >= maxHad {
		h.latest, h.earlier = map[[sha256.Size]byte]struct{}{}, h.latest
	}
	h.latest[id] = struct{}{}
	return false
}

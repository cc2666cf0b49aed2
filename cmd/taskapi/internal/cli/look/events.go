package look

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/client"
)

func Events(w base.Environment) *cobra.Command {
	s := &eventsStream{w: w}
	cmd := base.OnTarget(w, base.ToRead, &cobra.Command{
		Use:        "events [flags] [ALLOC]",
		SuggestFor: []string{"monitor", "watch", "journal", "history", "deployment"},
		Short:      "Print what has happened to an allocation",
		Long: `Prints the events of an allocation's tasks, and which of their requests to the API were refused, with --follow
until the allocation ends.

The format is that of 'taskapi run'. 'taskapi attach' also prints the tasks' output. Of refusals there are the latest
of each kind since the allocation's taskapi has started, with their number.

` + base.AllocArgs + `

--json prints the lines of GET /v1/event/stream of a running allocation: the latest few hundred, and with --follow
each new one. A template gets each line, as the SDK's Events. When the allocation's taskapi is replaced, or the token
is renewed, the stream begins again at its last index, whose events come a second time.`,
		Example: `  taskapi events
  taskapi events -f hello
  taskapi events -f --json --topic Allocation --topic Service hello`,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if !s.out.JSON && s.out.Template == "" && (cmd.Flags().Changed("topic") || cmd.Flags().Changed("from")) {
				return base.Usagef("--topic and --from select lines of the stream: add --json")
			}
			return nil
		},
	}, func(ctx context.Context, found base.Target) (err error) {
		ctx, release := base.UntilSignal(ctx)
		defer release()
		if s.target = found; s.out.ForPrograms() {
			err = s.run(ctx)
		} else {
			f := &follow.Follower{Target: found, W: w, Whole: !s.follow, Denied: true,
				Until: func(*api.Allocation) bool { return !s.follow }}
			_, err = f.Follow(ctx)
		}
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	f := cmd.Flags()
	f.BoolVarP(&s.follow, "follow", "f", false, "print events as they happen, until the allocation ends or Ctrl-C")
	base.AddOutputAs(cmd, &s.out, "print Nomad's event stream")
	f.StringArrayVar(&s.topics, "topic", nil,
		"with --json: print events of this `TOPIC` alone, such as Allocation; may be repeated")
	f.Uint64Var(&s.index, "from", 0, "with --json: print events from this `INDEX` on")
	return cmd
}

type eventsStream struct {
	target base.Target
	w      base.Environment
	out    base.OutputFlags
	follow bool
	topics []string
	index  uint64 // from which on events are wanted
}

// run prints the stream until the past events have been printed or, with --follow, until the allocation has ended.
func (s *eventsStream) run(ctx context.Context) error {
	c := s.target.Client()
	defer c.Close()
	for opened := false; ; opened = true {
		switch found := c.Locate(ctx, client.Following); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case found.Holder == client.Ended && opened:
			if last := found.Alloc.ModifyIndex; last > s.index {
				s.w.Warnf("events from index %d to %d may be lost: the allocation ended before they were read", s.index, last)
			}
			return nil
		case found.Holder != client.Serving:
			return s.target.ErrUnserved(found)
		}
		listening := c.Listening()
		done, err := s.read(ctx, c)
		if done || err != nil && !errors.Is(err, client.ErrNoAnswer) && !client.Refused(err) {
			return s.target.Explain(ctx, c, err)
		}
		c.AwaitClosed(ctx, listening)
	}
}

// read opens the stream and prints it until it ends, which is no error. done is true when no more of it is wanted.
func (s *eventsStream) read(ctx context.Context, c *client.Client) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := url.Values{"index": {strconv.FormatUint(s.index, 10)}, "topic": s.topics}
	resp, err := c.Do(ctx, http.MethodGet, "/v1/event/stream?"+query.Encode(), nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // the status says enough
		return false, &client.StatusError{Status: resp.StatusCode, Message: string(bytes.TrimSpace(reason))}
	}
	beats := 0 // the first begins the stream, the second follows what there was
	for lines := json.NewDecoder(resp.Body); ; {
		var raw json.RawMessage
		if lines.Decode(&raw) != nil {
			return false, nil // the stream has ended
		}
		if string(raw) == "{}" {
			if beats++; beats > 1 && !s.follow {
				return true, nil
			}
			continue
		}
		var line api.Events
		if json.Unmarshal(raw, &line) == nil && line.Index > s.index {
			s.index = line.Index
		}
		if err := s.out.Print(s.w, line, raw, nil); err != nil {
			return true, err
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// lookEvery is how often the watcher asks while it waits: often enough to look immediate to a reader.
const lookEvery = 100 * time.Millisecond

type config struct {
	Address   string    // unix:// address of the task's socket
	TokenFile string    // where the task's token is, renewed in place
	AllocID   string    // the allocation that the watcher belongs to
	Task      string    // the task to look after
	URL       string    // where that task serves
	Out       io.Writer // gets what the watcher saw
}

type watcher struct {
	config
	client *api.Client
	tokens []string // those used so far, the latest last
}

func newWatcher(c config) (*watcher, error) {
	if c.Address == "" {
		return nil, errors.New("NOMAD_UNIX_ADDR is not set; is this a task of an allocation?")
	}
	sdk := api.DefaultConfig()
	sdk.Address = c.Address
	client, err := api.NewClient(sdk)
	if err != nil {
		return nil, err
	}
	return &watcher{config: c, client: client}, nil
}

// tour is all that the watcher does, step by step.
func (w *watcher) tour(ctx context.Context) error {
	alloc, err := w.allocation(ctx, "the server runs", w.running)
	if err != nil {
		return err
	}
	w.say("my allocation is %s, %s: %s", alloc.ID[:8], alloc.Name, states(alloc))
	if err := w.checks(ctx); err != nil {
		return err
	}
	before, err := w.page(ctx, func(page) bool { return true })
	if err != nil {
		return err
	}
	if err := w.signal(ctx, alloc, before); err != nil {
		return err
	}
	if err := w.restart(ctx, alloc, before); err != nil {
		return err
	}
	if err := w.renewal(ctx); err != nil {
		return err
	}
	w.say("done")
	return nil
}

// checks waits until every check of the allocation succeeds.
func (w *watcher) checks(ctx context.Context) error {
	var results []api.AllocCheckStatus
	err := poll(ctx, "every check succeeds", func() (bool, error) {
		q, err := w.query(ctx)
		if err != nil {
			return false, err
		}
		all, err := w.client.Allocations().Checks(w.AllocID, q)
		if err != nil {
			return false, err
		}
		results = results[:0]
		for _, result := range all {
			results = append(results, result)
		}
		failing := func(r api.AllocCheckStatus) bool { return r.Status != "success" }
		return len(results) > 0 && !slices.ContainsFunc(results, failing), nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(results, func(a, b api.AllocCheckStatus) int { return strings.Compare(a.Check, b.Check) })
	for _, r := range results {
		w.say("check %q of service %q: %s (%s)", r.Check, r.Service, r.Status, r.Output)
	}
	return nil
}

// signal has the server read its greeting again, and waits until it did.
func (w *watcher) signal(ctx context.Context, alloc *api.Allocation, before page) error {
	q, err := w.query(ctx)
	if err != nil {
		return err
	}
	if err := w.client.Allocations().Signal(alloc, q, w.Task, "SIGHUP"); err != nil {
		return fmt.Errorf("signal task %q: %w", w.Task, err)
	}
	w.say("sent SIGHUP to %q", w.Task)
	_, err = w.page(ctx, func(p page) bool { return p.PID == before.PID && p.Read > before.Read })
	return err
}

// restart restarts the server, and waits until another process answers.
func (w *watcher) restart(ctx context.Context, alloc *api.Allocation, before page) error {
	q, err := w.query(ctx)
	if err != nil {
		return err
	}
	if err := w.client.Allocations().Restart(alloc, w.Task, q); err != nil {
		return fmt.Errorf("restart task %q: %w", w.Task, err)
	}
	w.say("restarted %q", w.Task)
	if _, err := w.page(ctx, func(p page) bool { return p.PID != before.PID }); err != nil {
		return err
	}
	alloc, err = w.allocation(ctx, "the restart is in the task's state", func(a *api.Allocation) bool {
		return a.TaskStates[w.Task].Restarts == 1 && a.TaskStates[w.Task].State == "running"
	})
	if err != nil {
		return err
	}
	var events []string
	for _, event := range alloc.TaskStates[w.Task].Events {
		events = append(events, event.Type)
	}
	w.say("events of %q: %s", w.Task, strings.Join(events, ", "))
	return nil
}

// renewal goes on asking until the token in the file is another one than at first. No request is ever refused: both
// tokens are good while they overlap.
func (w *watcher) renewal(ctx context.Context) error {
	_, err := w.allocation(ctx, "the token is renewed", func(*api.Allocation) bool { return len(w.tokens) > 1 })
	if err == nil {
		w.say("my token was renewed meanwhile, and every request was let in")
	}
	return err
}

// allocation waits until the allocation is as wanted.
func (w *watcher) allocation(ctx context.Context, what string,
	wanted func(*api.Allocation) bool) (*api.Allocation, error) {
	var alloc *api.Allocation
	err := poll(ctx, what, func() (bool, error) {
		q, err := w.query(ctx)
		if err != nil {
			return false, err
		}
		alloc, _, err = w.client.Allocations().Info(w.AllocID, q)
		if err != nil {
			return false, err
		}
		return alloc.TaskStates[w.Task] != nil && wanted(alloc), nil
	})
	return alloc, err
}

func (w *watcher) running(alloc *api.Allocation) bool {
	return alloc.TaskStates[w.Task].State == "running"
}

// query carries the token as it is in the file now: an identity with a ttl is renewed there.
func (w *watcher) query(ctx context.Context) (*api.QueryOptions, error) {
	token, err := os.ReadFile(w.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	q := &api.QueryOptions{AuthToken: strings.TrimSpace(string(token))}
	if !slices.Contains(w.tokens, q.AuthToken) {
		w.tokens = append(w.tokens, q.AuthToken)
	}
	return q.WithContext(ctx), nil
}

// A page is what the server answers.
type page struct {
	Greeting string
	Read     int64
	Request  int64
	PID      int
}

// page waits until the server answers as wanted. While it restarts it doesn't answer at all.
func (w *watcher) page(ctx context.Context, wanted func(page) bool) (page, error) {
	var got page
	err := poll(ctx, "the server answers", func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL, nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, nil
		}
		defer resp.Body.Close()
		got = page{}
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
			return false, nil
		}
		return wanted(got), nil
	})
	if err == nil {
		w.say("the server says %q: greeting read %d time(s) by process %d", got.Greeting, got.Read, got.PID)
	}
	return got, err
}

func (w *watcher) say(format string, args ...any) { fmt.Fprintf(w.Out, format+"\n", args...) }

// states lists the tasks with their states, by name.
func states(alloc *api.Allocation) string {
	var list []string
	for name, state := range alloc.TaskStates {
		list = append(list, name+" "+state.State)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// poll calls try until it reports true or fails, or ctx ends.
func poll(ctx context.Context, what string, try func() (bool, error)) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		ok, err := try()
		if err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-ticker.C:
		}
	}
}

package ui

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/children"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

const (
	listTime   = 3 * time.Second // for the allocations of the list to answer
	actionTime = 2 * time.Second // after which the browser waits no longer for the end of an action
)

// actions are the questions before each action, with the signals that are offered. Those with a state are for one task,
// and give it that state in the API's words.
var actions = map[string]struct {
	Verb, Hint, state string
	Signals           []string
}{
	"restart": {"Restart", "The restart is graceful, and does not count against the restart policy.", "", nil},
	"stop":    {"Stop", "The tasks are stopped gracefully, and the allocation ends.", "", nil},
	"signal": {"Signal", "If the signal ends a task, its restart policy decides whether the task starts again.", "",
		[]string{"SIGHUP", "SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT"}},
	"pause": {"Stop", "The task is stopped gracefully, and stays stopped until it is started.", "pause", nil},
	"start": {"Start", "The task runs, as its schedule says if it has one.", "scheduled", nil},
	"run":   {"Run", "The task runs now, whatever its schedule says, until it is stopped or started.", "run", nil},
}

var errDone, errNone = errors.New("done"), errors.New("there is no such allocation or task")

var classes = map[output.Color]string{output.Green: "good", output.Red: "bad", output.Yellow: "wait"}

// page is parsed for the first request, so that other commands don't pay for it.
var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page.html").Funcs(template.FuncMap{
		"names": base.TaskNames, "short": output.ShortID, "text": linewriter.OneLine, "check": output.CheckOutput,
		"word": output.TaskWord, "state": output.TaskState,
		"date":   func(seconds, ns int64) string { return output.Date(time.Unix(seconds, ns)) },
		"since":  func(t time.Time) string { return output.Duration(time.Since(t)) },
		"health": func(a *api.Allocation) string { health, _ := base.HealthOf(a); return health },
		"counts": func(a *api.Allocation) string { return output.TaskCounts(slices.Collect(maps.Values(a.TaskStates))) },
		"class":  func(status string) string { return classes[output.StatusColor(status)] },
	}).ParseFS(static, "static/page.html"))
})

// view is what the template shows: a list, an allocation, a question, or an error alone.
type view struct {
	Title, Error, Dirs string
	Allocs             []allocation
	Alloc              *allocation
	Task               string // whose output is shown, or that an action is for; empty for all
	Action             string
	Question           any // of actions
}

// allocation is one with what is known of it.
type allocation struct {
	ID     string
	Alloc  *api.Allocation // nil if nothing is known
	Live   bool            // its taskapi answers
	Why    string          // why it does not
	Notice notice          // how the latest action went
	Checks []api.AllocCheckStatus
	Events []event
	Output []logLine
	uses   []use
}

type event struct {
	Task string
	*api.TaskEvent
}

// add adds the events of a task, or with an empty name of the allocation.
func (a *allocation) add(task string, events []*api.TaskEvent) {
	for _, e := range events {
		a.Events = append(a.Events, event{task, e})
	}
}

type notice struct {
	Text string
	Bad  bool
}

// write writes a page, or with an error one that says it.
func (s *Server) write(w http.ResponseWriter, status int, v view, err error) {
	if err != nil {
		v.Error = err.Error()
	}
	var b bytes.Buffer
	if err := page().Execute(&b, v); err != nil {
		http.Error(w, "this page can't be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // an error is the browser's
}

// onTarget finds the allocation that a request names by its whole ID, and the task, if it names one. Without a task all
// tasks are meant, so a form that can't be read names none.
func (s *Server) onTarget(handle func(http.ResponseWriter, *http.Request, base.Target)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		id, task := r.PathValue("id"), r.Form.Get("task")
		f, err := base.Look(r.Context(), s.Environment, s.DataDir, id)
		for _, k := range f.Known {
			if k.Task = task; k.ID == id && (task == "" || slices.Contains(base.TaskNames(k.Alloc), task)) {
				handle(w, r, k.Target)
				return
			}
		}
		s.write(w, http.StatusNotFound, view{Title: "Not found"}, cmp.Or(err, errNone))
	}
}

// list shows the allocations in the order of status.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), listTime)
	defer cancel()
	f, err := base.Look(ctx, s.Environment, s.DataDir)
	v := view{Title: "Allocations", Dirs: f.Dirs(), Allocs: make([]allocation, len(f.Known))}
	var all sync.WaitGroup
	for i, k := range f.Known {
		a := &v.Allocs[len(v.Allocs)-1-i]
		if *a = (allocation{ID: k.ID, Alloc: k.Alloc}); k.Running {
			all.Go(func() { *a, _ = locate(ctx, k.Target) })
		}
	}
	all.Wait()
	s.write(w, http.StatusOK, v, err)
}

// locate returns an allocation as its taskapi answers it, or as it was last saved.
func locate(ctx context.Context, t base.Target) (allocation, client.Location) {
	found, err := t.Locate(ctx)
	a := allocation{ID: t.ID, Alloc: cmp.Or(found.Alloc, t.Alloc), Live: found.Holder == client.Serving}
	if found.Holder == client.Nobody {
		err = t.ErrUnserved(found)
	}
	if err != nil {
		a.Why = err.Error()
	}
	return a, found
}

// show shows an allocation. The script asks for it again and again, without the output, which it follows itself.
func (s *Server) show(w http.ResponseWriter, r *http.Request, t base.Target) {
	a, found := locate(r.Context(), t)
	if t.Alloc = a.Alloc; a.Live { // what is left out when it ends meanwhile
		_ = t.Ask(r.Context(), func(c *client.Client, sdk *api.Client) error {
			refused, _ := c.Refusals(r.Context())
			for task, events := range refused {
				a.add(task, events)
			}
			stats, err := sdk.Allocations().Stats(&api.Allocation{ID: t.ID}, (&api.QueryOptions{}).WithContext(r.Context()))
			if err == nil {
				a.uses = s.record(t.ID, stats)
			}
			return err
		})
		checks, _ := t.Checks(r.Context())
		a.Checks = base.SortedChecks(checks)
	} else if found.Saved != nil {
		a.Checks = base.SortedChecks(found.Saved.Checks)
	}
	v := view{Title: t.ID, Alloc: &a, Task: t.Task}
	if a.Alloc != nil {
		v.Title = a.Alloc.Name
		for task, state := range a.Alloc.TaskStates {
			a.add(task, state.Events)
		}
	}
	if t.Alloc != nil && t.Alloc.Job != nil && interfaces.IsParent(t.Alloc.Job) {
		a.add("", children.TaskEvents(t.Layout.Alloc(t.ID)))
	}
	slices.SortFunc(a.Events, func(a, b event) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Task, b.Task))
	})
	if r.Header.Get("Taskapi-Part") == "" {
		a.Output = lastOutput(r.Context(), t)
	}
	s.mu.Lock()
	a.Notice = s.notices[t.ID]
	s.mu.Unlock()
	s.write(w, http.StatusOK, v, nil)
}

// act asks before an action with GET, and does it with POST. Then it goes on to the allocation, which says how it went.
// The action goes on when the browser leaves.
func (s *Server) act(w http.ResponseWriter, r *http.Request, t base.Target) {
	name, signal := r.PathValue("action"), r.PostFormValue("signal")
	action, ok := actions[name]
	switch {
	case !ok || name == "stop" && t.Task != "" || action.state != "" && t.Task == "":
		http.NotFound(w, r)
		return
	case r.Method != http.MethodPost:
		s.write(w, http.StatusOK, view{Title: action.Verb + " " + t.String() + "?", Alloc: &allocation{ID: t.ID},
			Task: t.Task, Action: name, Question: action}, nil)
		return
	}
	what := fmt.Sprintf("%s %s", cmp.Or(signal, strings.ToLower(action.Verb)), t)
	s.tell(t.ID, what+": under way", false)
	done := make(chan struct{})
	s.actions.Go(func() {
		defer close(done)
		err := t.Ask(s.ctx, func(c *client.Client, sdk *api.Client) error {
			alloc, q := &api.Allocation{ID: t.ID}, (&api.QueryOptions{}).WithContext(s.ctx)
			switch name {
			case "restart":
				return c.Restart(s.ctx, api.AllocationRestartRequest{TaskName: t.Task})
			case "stop":
				return c.Stop(s.ctx, client.StopOptions{})
			case "signal":
				return sdk.Allocations().Signal(alloc, q, t.Task, signal)
			}
			return sdk.Allocations().SetPauseState(alloc, q, t.Task, action.state)
		})
		s.tell(t.ID, fmt.Sprintf("%s: %v", what, cmp.Or(err, errDone)), err != nil)
	})
	select {
	case <-done:
	case <-time.After(actionTime):
	}
	http.Redirect(w, r, "/alloc/"+t.ID, http.StatusSeeOther)
}

func (s *Server) tell(id, text string, bad bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices[id] = notice{time.Now().Format(time.TimeOnly) + " " + text, bad}
}

// Package exec has the routes that run commands in tasks, over a WebSocket: any command, or an action that the job file
// names.
package exec

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/transport"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/slice"
)

// Execer is an allocation in whose tasks commands can be run, as interfaces.AllocRunner runs them.
type Execer interface {
	Exec(ctx context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error)
}

// maxTaskExecs is how many commands the tasks of an allocation run at once over their sockets. It is less than the
// limit of the runner, so that the operator can always run one.
const maxTaskExecs = 24

type handlers struct {
	taskExecs atomic.Int64 // commands that run over the sockets of tasks
}

// Routes returns the rows of commands.
func Routes() []route.Route {
	h, get := new(handlers), []string{http.MethodGet}
	return []route.Route{
		route.New(get, "/v1/client/allocation/{alloc}/exec", auth.AllocExec, route.OnAlloc(apierror.NoAllocOnClient, h.exec),
			"Runs a command in a task; task=NAME, command=JSON, tty=BOOL.").
			Flags("tty", "ws_handshake").Answering(route.Upgrade).Recording(execDetail),
		route.New(get, "/v1/job/{job}/action", auth.AllocExec, h.action,
			"Runs an action of the job; action=NAME, task=NAME, tty=BOOL.").
			Flags("tty", "ws_handshake").Answering(route.Upgrade).Recording(actionDetail),
	}
}

// exec answers GET /v1/client/allocation/:id/exec: a WebSocket to a command in a task. task may be left out when there
// is one.
func (h *handlers) exec(_ context.Context, r *route.Request, alloc route.Alloc) (route.Answer, error) {
	task, err := chooseTask(alloc.Snapshot(), r.Query().Get("task"))
	if err != nil {
		return route.Answer{}, err
	}
	command, err := commandOf(r.Query())
	if err != nil {
		return route.Answer{}, err
	}
	return h.run(r, alloc, interfaces.ExecRequest{Task: task, Command: command})
}

// commandOf returns the command of a query, a JSON array.
func commandOf(query url.Values) (command []string, err error) {
	const right = `: it must be a JSON array of strings, the program first, such as ["ls","-l"]`
	err = json.Unmarshal([]byte(query.Get("command")), &command)
	switch {
	case !query.Has("command"), err == nil && len(command) == 0:
		return nil, route.Invalid("command is not present" + right)
	case err != nil:
		return nil, route.Invalid("command %s can't be read"+right, route.Clip(query.Get("command")))
	}
	return command, nil
}

func execDetail(record auth.Record, _ string, query url.Values) auth.Record {
	command, err := commandOf(query)
	if err != nil {
		return record
	}
	return record.Runs(query.Get("task"), command[0])
}

// chooseTask returns the task of that name, or the only one when the name is empty.
func chooseTask(alloc *api.Allocation, name string) (string, error) {
	if wire.OwnTask(alloc, name) != nil {
		return name, nil
	}
	names := slice.Map(wire.OwnGroup(alloc).Tasks, func(t *api.Task) string { return t.Name })
	switch {
	case name != "":
		return "", apierror.New(apierror.NoTask)
	case len(names) == 1:
		return names[0], nil
	}
	return "", route.Invalid("must provide task name: the allocation has the tasks %s", strings.Join(names, ", "))
}

// isTerminalType reports whether a text has the form of a terminal's name in terminfo.
func isTerminalType(text string) bool {
	matches, _ := regexp.MatchString(`^[A-Za-z0-9][A-Za-z0-9.+_-]*$`, text) // the expression is correct
	return matches && len(text) <= 64
}

// run returns the answer that runs a command, with the query's tty, term and ws_handshake.
func (h *handlers) run(r *route.Request, alloc route.Alloc, req interfaces.ExecRequest) (route.Answer, error) {
	execer, ok := alloc.(Execer)
	if !ok {
		return route.Answer{}, apierror.New(apierror.NoRoute)
	}
	req.TTY = r.Flag("tty", false)
	if req.Term = r.Query().Get("term"); req.Term != "" && !isTerminalType(req.Term) {
		return route.Answer{}, route.Invalid("term %s is no type of a terminal, such as xterm-256color", route.Clip(req.Term))
	}
	if err := checkHandshake(r.Request); err != nil {
		return route.Answer{}, err
	}
	relay := &relay{raw: transport.ConnOf(r.Context()), writing: make(chan struct{}, 1)}
	if r.Flag("ws_handshake", false) {
		_, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		relay.token = cmp.Or(r.Header.Get("X-Nomad-Token"), strings.TrimLeft(bearer, " "))
	}
	return route.Answer{Farewell: relay.farewell, Upgrade: func(ctx context.Context, w http.ResponseWriter) error {
		leave, err := h.enterExec(r.Principal)
		if err != nil {
			return err
		}
		defer leave()
		session, err := execer.Exec(ctx, req)
		if err != nil {
			return err
		}
		defer session.Close()
		return relay.serve(w, r.Request, session)
	}}, nil
}

// enterExec takes a place among the commands that tasks run. Its error is TooManyExecs.
func (h *handlers) enterExec(p *auth.Principal) (leave func(), err error) {
	if p.Operator() {
		return func() {}, nil
	}
	leave = func() { h.taskExecs.Add(-1) }
	if h.taskExecs.Add(1) > maxTaskExecs {
		leave()
		return nil, apierror.New(apierror.TooManyExecs)
	}
	return leave, nil
}

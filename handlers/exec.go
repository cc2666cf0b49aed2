package handlers

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// Execer is an allocation in whose tasks commands can be run, as interfaces.AllocRunner runs them.
type Execer interface {
	Exec(ctx context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error)
}

// maxTaskExecs is how many commands the tasks of an allocation run at once over their sockets: fewer than there may be, so that the
// operator always gets in.
const maxTaskExecs = 24

// exec answers GET /v1/client/allocation/:id/exec: a WebSocket to a command in a task. task may be left out when there is one.
func (a *API) exec(_ context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(apierror.NoAllocOnClient)
	if err != nil {
		return answer{}, err
	}
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	task, err := chooseTask(alloc.Snapshot(), query.Get("task"))
	if err != nil {
		return answer{}, err
	}
	command, err := commandOf(query)
	if err != nil {
		return answer{}, err
	}
	return a.execAnswer(r, alloc, interfaces.ExecRequest{Task: task, Command: command})
}

// commandOf returns the command of a query, a JSON array.
func commandOf(query url.Values) (command []string, err error) {
	const right = `: it must be a JSON array of strings, the program first, such as ["ls","-l"]`
	if !query.Has("command") {
		return nil, invalid("command is not present" + right)
	}
	if err := json.Unmarshal([]byte(query.Get("command")), &command); err != nil {
		return nil, invalid("command %s can't be read"+right, clip(query.Get("command")))
	}
	if len(command) == 0 {
		return nil, invalid("command is not present" + right)
	}
	return command, nil
}

// execDetail adds the task and the program of a query's command.
func execDetail(record auth.Record, _ *request, query url.Values) auth.Record {
	command, err := commandOf(query)
	if err != nil {
		return record
	}
	return record.Runs(query.Get("task"), command[0])
}

// chooseTask returns the task of that name, or the only one when the name is empty.
func chooseTask(alloc *api.Allocation, name string) (string, error) {
	if taskOf(alloc, name) != nil {
		return name, nil
	}
	var names []string
	for _, task := range groupOf(alloc).Tasks {
		names = append(names, task.Name)
	}
	switch {
	case name != "":
		return "", apierror.New(apierror.NoTask)
	case len(names) == 1:
		return names[0], nil
	}
	return "", invalid("must provide task name: the allocation has the tasks %s", strings.Join(names, ", "))
}

// terminalType is what the names of terminals in terminfo consist of.
var terminalType = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}$`)

// execAnswer returns the answer that runs a command, with what else the query says: tty, term, ws_handshake.
func (a *API) execAnswer(r *request, alloc Alloc, req interfaces.ExecRequest) (answer, error) {
	execer, ok := alloc.(Execer)
	if !ok {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	if req.TTY, err = flag(query, "tty", false); err != nil {
		return answer{}, err
	}
	if req.Term = query.Get("term"); req.Term != "" && !terminalType.MatchString(req.Term) {
		return answer{}, invalid("term %s is no type of a terminal, such as xterm-256color", clip(req.Term))
	}
	greets, err := flag(query, "ws_handshake", false)
	if err != nil {
		return answer{}, err
	}
	if err := checkHandshake(r.Request); err != nil {
		return answer{}, err
	}
	relay := &execRelay{raw: connectionOf(r.Context()), writing: make(chan struct{}, 1)}
	if greets {
		relay.token = tokenOf(r.Header)
	}
	return answer{farewell: relay.farewell, upgrade: func(ctx context.Context, w http.ResponseWriter) error {
		leave, err := a.enterExec(r.Principal)
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
func (a *API) enterExec(p *auth.Principal) (leave func(), err error) {
	if p.Operator() {
		return func() {}, nil
	}
	leave = func() { a.taskExecs.Add(-1) }
	if a.taskExecs.Add(1) > maxTaskExecs {
		leave()
		return nil, apierror.New(apierror.TooManyExecs)
	}
	return leave, nil
}

// tokenOf returns the token of an authenticated request.
func tokenOf(h http.Header) string {
	if token := h.Get("X-Nomad-Token"); token != "" {
		return token
	}
	_, token, _ := strings.Cut(h.Get("Authorization"), " ")
	return strings.TrimLeft(token, " ")
}

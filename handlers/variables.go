package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// Variables are those of all namespaces, and the locks on them: a *variables.Service.
type Variables interface {
	Read(ctx context.Context, namespace, path string) (*api.Variable, uint64, error)
	List(ctx context.Context, namespace, prefix string, concerns variables.Concerns) ([]*api.VariableMetadata, uint64, error)
	Await(ctx context.Context, namespace, prefix string, after uint64, concerns variables.Concerns) error
	Put(ctx context.Context, v *api.Variable, check *uint64) (*api.Variable, uint64, error)
	Delete(ctx context.Context, namespace, path string, check *uint64) (uint64, error)
	Acquire(ctx context.Context, v *api.Variable) (*api.Variable, uint64, error)
	Renew(ctx context.Context, namespace, path, lockID string) (*api.VariableMetadata, uint64, error)
	Release(ctx context.Context, namespace, path, lockID string) (*api.Variable, uint64, error)
}

// wireVariable is a variable as Nomad encodes it.
type wireVariable struct {
	api.VariableMetadata

	Items api.VariableItems `json:",omitempty"`
}

func wireVariableOf(v *api.Variable) wireVariable {
	metadata := v.Metadata()
	metadata.Lock = v.Lock
	return wireVariable{*metadata, v.Items}
}

// keptVariables returns the variables. Without one every request is NotImplemented: a client would take NoRoute for "there is none".
func (a *API) keptVariables() (Variables, error) {
	if a.config.Variables == nil {
		return nil, apierror.New(apierror.NotImplemented, "this program keeps no variables")
	}
	return a.config.Variables, nil
}

// variableAt is a variable that a request is about.
type variableAt struct {
	kept            Variables
	namespace, path string
}

// concerns reports whether a variable is the one.
func (v variableAt) concerns(namespace, path string) bool {
	return namespace == v.namespace && path == v.path
}

// variableAt returns the variable that the path and the query name.
func (a *API) variableAt(r *request) (variableAt, error) {
	kept, err := a.keptVariables()
	if err != nil {
		return variableAt{}, err
	}
	namespace, err := r.namespace()
	if err != nil {
		return variableAt{}, err
	}
	path := r.param("*")
	if path == "" {
		return variableAt{}, invalid("missing variable path")
	}
	return variableAt{kept, namespace, path}, nil
}

// namespace returns the namespace that the query names, Nomad's default one when it names none.
func (r *request) namespace() (string, error) {
	query, err := r.values()
	if err != nil {
		return "", err
	}
	return cmp.Or(query.Get("namespace"), api.DefaultNamespace), nil
}

// mayVariable returns a *auth.Denial, which it records, when the caller has no such right on a variable, whether there is one or not.
func (r *request) mayVariable(of variableAt, right auth.VariableRight) error {
	r.namespaced = of.namespace
	if r.Principal.MayVariable(of.namespace, of.path, right) {
		return nil
	}
	denial := &auth.Denial{Reason: auth.MissingCapability}
	r.server.recordLacking(r, denial)
	return denial
}

var variableListing = listing[*api.VariableMetadata]{
	order:     byNamespaceID,
	id:        func(v *api.VariableMetadata) string { return v.Path },
	namespace: func(v *api.VariableMetadata) string { return v.Namespace },
}

// VariablesPage returns the page of variables that filter, per_page and next_token ask for, and the token of what follows it, as GET /v1/vars
// answers them: for where no agent is asked. Errors: *apierror.Error, those of ctx.
func VariablesPage(ctx context.Context, all []*api.VariableMetadata, query url.Values) (page []*api.VariableMetadata, next string, err error) {
	return pageOf(ctx, query, variableListing, all)
}

// variableList answers GET /v1/vars with the variables that the caller may list; it does not learn of others, nor when they change.
func (a *API) variableList(ctx context.Context, r *request) (answer, error) {
	kept, err := a.keptVariables()
	if err != nil {
		return answer{}, err
	}
	namespace, err := r.namespace()
	if err != nil {
		return answer{}, err
	}
	list, err := newList(r, variableListing)
	if err != nil {
		return answer{}, err
	}
	may := func(namespace, path string) bool { return r.Principal.MayVariable(namespace, path, auth.VariableList) }
	err = r.awaitShared(ctx, 0, func(ctx context.Context, after uint64) error {
		return kept.Await(ctx, namespace, list.prefix, after, may)
	})
	if err != nil {
		return answer{}, err
	}
	all, index, err := kept.List(ctx, namespace, list.prefix, may)
	if err != nil {
		return answer{}, fmt.Errorf("list variables: %w", err)
	}
	for _, v := range all { // before a filter sees it
		if !r.Principal.Operator() {
			v.Lock = nil
		}
	}
	result, err := list.answer(all, index)
	result.shared = true
	return result, err
}

// variableGet answers GET /v1/var/:path. One that is not there is 404 with an index, so that a client can wait until it is.
func (a *API) variableGet(ctx context.Context, r *request) (answer, error) {
	at, err := a.variableAt(r)
	if err != nil {
		return answer{}, err
	}
	if err := r.mayVariable(at, auth.VariableRead); err != nil {
		return answer{}, err
	}
	there, _, err := at.kept.List(ctx, at.namespace, at.path, at.concerns) // without the items
	if err != nil {
		return answer{}, fmt.Errorf("read variable: %w", err)
	}
	known := uint64(0)
	for _, v := range there {
		known = v.ModifyIndex
	}
	err = r.awaitShared(ctx, known, func(ctx context.Context, after uint64) error {
		return at.kept.Await(ctx, at.namespace, at.path, after, at.concerns)
	})
	if err != nil {
		return answer{}, err
	}
	if err := r.enterMaking(ctx); err != nil { // of 64 KiB, in JSON up to six times as long
		return answer{}, err
	}
	v, index, err := at.kept.Read(ctx, at.namespace, at.path)
	if err != nil {
		return answer{}, fmt.Errorf("read variable: %w", err)
	}
	if v == nil {
		missing := apierror.New(apierror.NoVariable)
		missing.Index = index
		return answer{}, missing
	}
	if !r.Principal.Operator() {
		v.Lock = nil
	}
	encoded, err := encode(wireVariableOf(v))
	return answer{body: encoded, index: index, shared: true}, err
}

// variableDetail adds the variable's namespace, and what is done with its lock. A body can name the namespace, too:
// until it is read, the record has the query's.
func variableDetail(record auth.Record, r *request, query url.Values) auth.Record {
	for _, operation := range lockOperations {
		if query.Has(operation) {
			return record.About(cmp.Or(r.namespaced, query.Get("namespace")), strings.TrimPrefix(operation, "lock-"))
		}
	}
	return record.About(cmp.Or(r.namespaced, query.Get("namespace")), "")
}

// variableWrite is a request that changes a variable, or its lock.
type variableWrite struct {
	variableAt
	operation string // lockAcquire, lockRenew or lockRelease; empty for a write or a deletion
	check     *uint64
	body      *api.Variable
}

// The parameters of the query that name an operation of a lock.
const (
	lockAcquire = "lock-acquire"
	lockRenew   = "lock-renew"
	lockRelease = "lock-release"
)

var lockOperations = []string{lockAcquire, lockRenew, lockRelease}

// variableWrite reads a request that changes a variable.
func (a *API) variableWrite(r *request) (variableWrite, error) {
	at, err := a.variableAt(r)
	if err != nil {
		return variableWrite{}, err
	}
	if !r.Principal.Operator() {
		at.kept = a.config.TaskVariables(r.Principal.Claims.Namespace, r.Principal.Claims.JobID)
	}
	w := variableWrite{variableAt: at}
	query, err := r.values()
	if err != nil {
		return variableWrite{}, err
	}
	for _, operation := range lockOperations {
		if !query.Has(operation) {
			continue
		}
		if w.operation != "" {
			return variableWrite{}, invalid("multiple lock operations")
		}
		w.operation = operation
	}
	text := query.Get("cas")
	switch {
	case text == "":
		return w, nil
	case w.operation != "":
		return variableWrite{}, invalid("CAS can't be used with lock operations")
	}
	check, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return variableWrite{}, invalid("can not parse cas: %s is no whole number, as a variable's ModifyIndex is", clip(text))
	}
	w.check = &check
	return w, nil
}

const (
	// maxVariable is the ceiling of the body of a variable: its items, in JSON's quotes, and what is known of it. The
	// answer to a conflict, which shows what is there, is as long at most.
	maxVariable = 512 << 10
)

// variablePut answers PUT /v1/var/:path: writes a variable, or does what the query says with its lock.
func (a *API) variablePut(ctx context.Context, r *request) (answer, error) {
	w, err := a.variableWrite(r)
	if err != nil {
		return answer{}, err
	}
	shown := 0
	if w.check != nil {
		shown = maxVariable
	}
	if err := r.reserveBody(shown); err != nil {
		return answer{}, err
	}
	var body wireVariableBody
	if err := r.decode(&body, false); err != nil {
		return answer{}, err
	}
	w.namespace = cmp.Or(body.Namespace, w.namespace)
	if err := r.mayVariable(w.variableAt, auth.VariableWrite); err != nil {
		return answer{}, err
	}
	w.body = body.variable(w.namespace, w.path)
	written, index, err := w.apply(ctx)
	if err != nil {
		return w.failed(r, err)
	}
	if !r.Principal.Operator() && written.LockID() != w.body.LockID() && w.operation != lockAcquire {
		written.Lock = nil
	}
	encoded, err := encode(wireVariableOf(written))
	return answer{body: encoded, index: index, shared: true}, err
}

// apply writes the variable, or does with its lock what was requested.
func (w variableWrite) apply(ctx context.Context) (*api.Variable, uint64, error) {
	switch w.operation {
	case lockAcquire:
		return w.kept.Acquire(ctx, w.body)
	case lockRenew:
		m, index, err := w.kept.Renew(ctx, w.namespace, w.path, w.body.LockID())
		if err != nil {
			return nil, 0, err
		}
		return &api.Variable{
			Namespace: m.Namespace, Path: m.Path, CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
			CreateTime: m.CreateTime, ModifyTime: m.ModifyTime, Lock: m.Lock,
		}, index, nil
	case lockRelease:
		switch {
		case w.body.LockID() == "":
			return nil, 0, invalid("missing lock information")
		case w.body.Items != nil:
			return nil, 0, invalid("lock release operation doesn't take variable items")
		}
		return w.kept.Release(ctx, w.namespace, w.path, w.body.LockID())
	}
	if len(w.body.Items) == 0 {
		return nil, 0, invalid("variable missing required Items object")
	}
	return w.kept.Put(ctx, w.body, w.check)
}

// failed returns the answer to a write that was refused. A conflict shows the caller what it may read of what is there.
func (w variableWrite) failed(r *request, err error) (answer, error) {
	conflict, ok := errors.AsType[*variables.ConflictError](err)
	if !ok {
		return answer{}, fmt.Errorf("write variable: %w", err)
	}
	shown := *conflict.Variable
	if !r.Principal.MayVariable(w.namespace, w.path, auth.VariableRead) {
		shown.Items = nil
	}
	if !r.Principal.Operator() {
		shown.Lock = nil
	}
	encoded, err := encode(wireVariableOf(&shown))
	return answer{body: encoded, index: shown.ModifyIndex, shared: true, status: http.StatusConflict}, err
}

// variableDelete answers DELETE /v1/var/:path. A variable that is not there is deleted already.
func (a *API) variableDelete(ctx context.Context, r *request) (answer, error) {
	w, err := a.variableWrite(r)
	if err != nil {
		return answer{}, err
	}
	if err := r.mayVariable(w.variableAt, auth.VariableDestroy); err != nil {
		return answer{}, err
	}
	if w.check != nil {
		if err := r.reserveBody(maxVariable); err != nil {
			return answer{}, err
		}
	}
	index, err := w.kept.Delete(ctx, w.namespace, w.path, w.check)
	if err != nil {
		return w.failed(r, err)
	}
	return answer{index: index, shared: true, status: http.StatusNoContent}, nil
}

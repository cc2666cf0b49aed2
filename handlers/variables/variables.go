// Package variables has the routes of variables and their locks. A caller learns nothing of a variable that it may
// neither list nor read, not even when such a variable changes.
package variables

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
)

// Store is the variables of all namespaces, and the locks on them: a *variables.Service.
type Store interface {
	Read(ctx context.Context, namespace, path string) (*api.Variable, uint64, error)
	List(ctx context.Context, namespace, prefix string, concerns variables.Concerns) (
		[]*api.VariableMetadata, uint64, error)
	Await(ctx context.Context, namespace, prefix string, after uint64, concerns variables.Concerns) error
	Put(ctx context.Context, v *api.Variable, check *uint64) (*api.Variable, uint64, error)
	Delete(ctx context.Context, namespace, path string, check *uint64) (uint64, error)
	Acquire(ctx context.Context, v *api.Variable) (*api.Variable, uint64, error)
	Renew(ctx context.Context, namespace, path, lockID string) (*api.VariableMetadata, uint64, error)
	Release(ctx context.Context, namespace, path, lockID string) (*api.Variable, uint64, error)
	Feed() *variables.Feed
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

type handlers struct {
	kept   Store
	ofTask func(namespace, job string) Store // the same for a task's writes
}

// maxVariable is the ceiling of the body of a variable: its items, in JSON's quotes, and its metadata. The answer to a
// conflict, which shows what is there, is as long at most.
const maxVariable = 512 << 10

// Routes returns the rows of variables. ofTask returns the store for the writes of a task of a job; nil for the same
// one. Without a store, every request is NotImplemented: a client would take NoRoute for "there is none".
func Routes(kept Store, ofTask func(namespace, job string) Store) []route.Route {
	if ofTask == nil {
		ofTask = func(string, string) Store { return kept }
	}
	h := &handlers{kept, ofTask}
	rows := []route.Route{
		route.Read("/v1/vars", auth.VariablesRead, h.list,
			"Lists the variables that the caller may list, without their items."),
		route.Read("/v1/var/*", auth.VariablesRead, h.get, "Returns a variable."),
		route.Write("/v1/var/*", auth.VariablesWrite, h.put,
			"Writes a variable; cas=INDEX. lock-acquire, lock-renew, lock-release: its lock.").WithBody(maxVariable),
		route.Remove("/v1/var/*", auth.VariablesWrite, h.remove, "Deletes a variable; cas=INDEX."),
	}
	for i := range rows {
		if i > 0 {
			rows[i] = rows[i].Recording(variableDetail)
		}
		rows[i] = rows[i].Given(kept != nil, apierror.NotImplemented, "this program keeps no variables")
	}
	return rows
}

type variableAt struct {
	kept            Store
	namespace, path string
}

func (v variableAt) concerns(namespace, path string) bool {
	return namespace == v.namespace && path == v.path
}

func (h *handlers) variableAt(r *route.Request) (variableAt, error) {
	path := r.Param("*")
	if path == "" {
		return variableAt{}, route.Invalid("missing variable path")
	}
	return variableAt{h.kept, namespaceOfQuery(r), path}, nil
}

// namespaceOfQuery returns the namespace that the query names, Nomad's default one when it names none.
func namespaceOfQuery(r *route.Request) string {
	return cmp.Or(r.Query().Get("namespace"), api.DefaultNamespace)
}

// may returns nil when the caller has the right on the variable, whether there is one or not. Otherwise it returns a
// *auth.Denial, which it records.
func (v variableAt) may(r *route.Request, right auth.VariableRight) error {
	r.Namespace = v.namespace
	if r.Principal.MayVariable(v.namespace, v.path, right) {
		return nil
	}
	return r.Lacking()
}

var listing = list.Listing[*api.VariableMetadata]{
	Order:     list.ByNamespaceID,
	ID:        func(v *api.VariableMetadata) string { return v.Path },
	Namespace: func(v *api.VariableMetadata) string { return v.Namespace },
}

// list answers GET /v1/vars with the variables that the caller may list. The caller does not learn of others, nor when
// they change.
func (h *handlers) list(ctx context.Context, r *route.Request) (route.Answer, error) {
	namespace := namespaceOfQuery(r)
	l, err := list.New(r, listing)
	if err != nil {
		return route.Answer{}, err
	}
	may := func(namespace, path string) bool { return r.Principal.MayVariable(namespace, path, auth.VariableList) }
	err = r.AwaitChange(ctx, 0, func(ctx context.Context, after uint64) error {
		return h.kept.Await(ctx, namespace, l.Prefix, after, may)
	})
	if err != nil {
		return route.Answer{}, err
	}
	if err := r.EnterMaking(ctx); err != nil { // there may be thousands
		return route.Answer{}, err
	}
	all, index, err := h.kept.List(ctx, namespace, l.Prefix, may)
	if err != nil {
		return route.Answer{}, fmt.Errorf("list variables: %w", err)
	}
	for _, v := range all { // before a filter sees it
		if !r.Principal.Operator() {
			v.Lock = nil
		}
	}
	result, err := l.Answer(all, index)
	result.Shared = true
	return result, err
}

// get answers GET /v1/var/:path. A missing variable is 404 with an index, so that a client can wait until it exists.
func (h *handlers) get(ctx context.Context, r *route.Request) (route.Answer, error) {
	at, err := h.variableAt(r)
	if err != nil {
		return route.Answer{}, err
	}
	if err := at.may(r, auth.VariableRead); err != nil {
		return route.Answer{}, err
	}
	known, listed := uint64(0), uint64(0)
	if after, _ := route.IndexOf(r.Query()); after > 0 { // else nobody waits
		var there []*api.VariableMetadata
		if there, listed, err = at.kept.List(ctx, at.namespace, at.path, at.concerns); err != nil {
			return route.Answer{}, fmt.Errorf("read variable: %w", err)
		}
		for _, v := range there {
			known = v.ModifyIndex
		}
	}
	err = r.AwaitChange(ctx, known, func(ctx context.Context, after uint64) error {
		if known > 0 { // nothing has happened to it up to there, which the store may have forgotten
			after = max(after, listed)
		}
		return at.kept.Await(ctx, at.namespace, at.path, after, at.concerns)
	})
	if err != nil {
		return route.Answer{}, err
	}
	if err := r.EnterMaking(ctx); err != nil { // of 64 KiB, in JSON up to six times as long
		return route.Answer{}, err
	}
	v, index, err := at.kept.Read(ctx, at.namespace, at.path)
	if err != nil {
		return route.Answer{}, fmt.Errorf("read variable: %w", err)
	}
	if v == nil {
		missing := apierror.New(apierror.NoVariable)
		missing.Index = index
		return route.Answer{}, missing
	}
	if !r.Principal.Operator() {
		v.Lock = nil
	}
	return route.Shared(wireVariableOf(v), index)
}

// variableDetail adds the variable's namespace and the operation on its lock. A body can name the namespace, too: until
// the body is read, the record has the query's.
func variableDetail(record auth.Record, namespace string, query url.Values) auth.Record {
	namespace = cmp.Or(namespace, query.Get("namespace"))
	for _, operation := range lockOperations {
		if query.Has(operation) {
			return record.About(namespace, strings.TrimPrefix(operation, "lock-"))
		}
	}
	return record.About(namespace, "")
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

func (h *handlers) write(r *route.Request) (variableWrite, error) {
	at, err := h.variableAt(r)
	if err != nil {
		return variableWrite{}, err
	}
	if !r.Principal.Operator() {
		at.kept = h.ofTask(r.Principal.Claims.Namespace, r.Principal.Claims.JobID)
	}
	w := variableWrite{variableAt: at}
	query := r.Query()
	for _, operation := range lockOperations {
		if !query.Has(operation) {
			continue
		}
		if w.operation != "" {
			return variableWrite{}, route.Invalid("multiple lock operations")
		}
		w.operation = operation
	}
	text := query.Get("cas")
	switch {
	case text == "":
		return w, nil
	case w.operation != "":
		return variableWrite{}, route.Invalid("CAS can't be used with lock operations")
	}
	check, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return variableWrite{}, route.Invalid("can not parse cas: %s is no whole number, as a variable's ModifyIndex is",
			route.Clip(text))
	}
	w.check = &check
	return w, nil
}

// put answers PUT /v1/var/:path: writes a variable, or does the lock operation that the query names.
func (h *handlers) put(ctx context.Context, r *route.Request) (route.Answer, error) {
	w, err := h.write(r)
	if err != nil {
		return route.Answer{}, err
	}
	shown := 0
	if w.check != nil {
		shown = maxVariable
	}
	if err := r.ReserveBody(shown); err != nil {
		return route.Answer{}, err
	}
	var body wireVariableBody
	if err := r.Decode(&body, false); err != nil {
		return route.Answer{}, err
	}
	w.namespace = cmp.Or(body.Namespace, w.namespace)
	if err := w.may(r, auth.VariableWrite); err != nil {
		return route.Answer{}, err
	}
	w.body = body.variable(w.namespace, w.path)
	written, index, err := w.apply(ctx)
	if err != nil {
		return w.failed(r, err)
	}
	if !r.Principal.Operator() && written.LockID() != w.body.LockID() && w.operation != lockAcquire {
		written.Lock = nil
	}
	return route.Shared(wireVariableOf(written), index)
}

// apply writes the variable, or does the requested operation on its lock.
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
			return nil, 0, route.Invalid("missing lock information")
		case w.body.Items != nil:
			return nil, 0, route.Invalid("lock release operation doesn't take variable items")
		}
		return w.kept.Release(ctx, w.namespace, w.path, w.body.LockID())
	}
	if len(w.body.Items) == 0 {
		return nil, 0, route.Invalid("variable missing required Items object")
	}
	return w.kept.Put(ctx, w.body, w.check)
}

// failed returns the answer to a refused write. A conflict shows the existing variable, as far as the caller may read
// it.
func (w variableWrite) failed(r *route.Request, err error) (route.Answer, error) {
	conflict, ok := errors.AsType[*variables.ConflictError](err)
	if !ok {
		return route.Answer{}, fmt.Errorf("write variable: %w", err)
	}
	shown := *conflict.Variable
	if !r.Principal.MayVariable(w.namespace, w.path, auth.VariableRead) {
		shown.Items = nil
	}
	if !r.Principal.Operator() {
		shown.Lock = nil
	}
	encoded, err := route.Encode(wireVariableOf(&shown))
	return route.Answer{Body: encoded, Index: shown.ModifyIndex, Shared: true, Status: http.StatusConflict}, err
}

// remove answers DELETE /v1/var/:path. Deleting a missing variable succeeds.
func (h *handlers) remove(ctx context.Context, r *route.Request) (route.Answer, error) {
	w, err := h.write(r)
	if err != nil {
		return route.Answer{}, err
	}
	if err := w.may(r, auth.VariableDestroy); err != nil {
		return route.Answer{}, err
	}
	if w.check != nil {
		if err := r.ReserveBody(maxVariable); err != nil {
			return route.Answer{}, err
		}
	}
	index, err := w.kept.Delete(ctx, w.namespace, w.path, w.check)
	if err != nil {
		return w.failed(r, err)
	}
	return route.Answer{Index: index, Shared: true, Status: http.StatusNoContent}, nil
}

// wireVariableBody is a variable as a client sends it. The URL has its path, and the store its indexes and times.
type wireVariableBody struct {
	Namespace string
	Items     map[string]string
	Lock      *struct {
		ID        string
		TTL       wireDuration
		LockDelay wireDuration
	}
}

func (b wireVariableBody) variable(namespace, path string) *api.Variable {
	v := &api.Variable{Namespace: namespace, Path: path, Items: b.Items}
	if b.Lock != nil && (b.Lock.ID != "" || b.Lock.TTL != "" || b.Lock.LockDelay != "") {
		v.Lock = &api.VariableLock{ID: b.Lock.ID, TTL: string(b.Lock.TTL), LockDelay: string(b.Lock.LockDelay)}
	}
	return v
}

// wireDuration is a duration as the SDK has it, a text such as "15s", empty for none or for zero. Nomad takes a number
// of nanoseconds, too.
type wireDuration string

// UnmarshalJSON reads a text or a number.
func (d *wireDuration) UnmarshalJSON(encoded []byte) error {
	var value any
	if err := json.Unmarshal(encoded, &value); err != nil {
		return err
	}
	var parsed time.Duration
	switch v := value.(type) {
	case nil:
	case float64:
		parsed = time.Duration(v)
	case string:
		if v == "" {
			break
		}
		var err error
		if parsed, err = time.ParseDuration(v); err != nil {
			return fmt.Errorf("a lock's TTL and LockDelay: %w", err)
		}
	default:
		return errors.New(`a lock's TTL and LockDelay must be durations such as "15s"`)
	}
	*d = ""
	if parsed != 0 {
		*d = wireDuration(parsed.String())
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/examples/doctest"
	"taskapi/internal/must"
)

// The verdicts on calls of the SDK, beside the status of an error.
const (
	works     = "works"
	sdkError  = "error" // the SDK's own, without a status
	noRequest = "local" // there is nothing to answer
)

// sdkCalls is calls of one client of the SDK with the same answer.
type sdkCalls struct {
	client         string // as api.Client's method has it; empty for api.Client's own
	methods        string
	operator, task string // what each gets
	why            string
}

// sdkMethods returns every method that reaches the API, as "Jobs.Info", with the function that gets it from a client.
func sdkMethods() map[string]func(*api.Client) reflect.Value {
	found := map[string]func(*api.Client) reflect.Value{}
	var walk func(prefix string, of reflect.Type, get func(*api.Client) reflect.Value)
	walk = func(prefix string, of reflect.Type, get func(*api.Client) reflect.Value) {
		for i := range of.NumMethod() {
			method := of.Method(i)
			name := prefix + method.Name
			of := func(c *api.Client) reflect.Value { return get(c).Method(i) }
			signature := method.Type // with its receiver
			if signature.NumIn() == 1 && signature.NumOut() == 1 && isSDKClient(signature.Out(0)) {
				walk(name+".", signature.Out(0), func(c *api.Client) reflect.Value { return of(c).Call(nil)[0] })
				continue
			}
			found[name] = of
		}
	}
	walk("", reflect.TypeFor[*api.Client](), func(c *api.Client) reflect.Value { return reflect.ValueOf(c) })
	return found
}

// isSDKClient reports whether a type is one of the SDK's clients of a resource.
func isSDKClient(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer && t.NumMethod() > 0 &&
		t.Elem().PkgPath() == reflect.TypeFor[api.Client]().PkgPath()
}

// TestEverySDKCallHasARow: a method that a new SDK adds fails here until somebody has said what it gets.
func TestEverySDKCallHasARow(t *testing.T) {
	methods, rows := sdkMethods(), map[string]bool{}
	for _, row := range sdkTable {
		for method := range strings.FieldsSeq(row.methods) {
			name := strings.TrimPrefix(row.client+"."+method, ".")
			if methods[name] == nil {
				t.Errorf("the SDK has no %s", name)
			}
			if rows[name] {
				t.Errorf("%s is in two rows", name)
			}
			rows[name] = true
		}
	}
	for name := range methods {
		if !rows[name] {
			t.Errorf("%s of the SDK is in no row", name)
		}
	}
	if len(methods) < 270 {
		t.Errorf("%d methods were found, which is too few", len(methods))
	}
}

// TestSDKCallsAreDocumented holds docs/api.md to the table.
func TestSDKCallsAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("| client | calls | the operator | a task | |\n|---|---|---|---|---|\n")
	for _, row := range sdkTable {
		methods := strings.Join(strings.Fields(row.methods), ", ")
		fmt.Fprintf(&want, "| %s | %s | %s | %s | %s |\n", row.client, methods, row.operator, row.task, row.why)
	}
	doctest.Table(t, "../../docs/api.md", "cmd/taskapi", want.String())
}

// TestSDKCalls makes every call, with arguments that make sense, as the operator and as a task on its own socket, of a
// real allocation.
func TestSDKCalls(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), sdkJob)
	operator := r.operator()
	w := sdkWorld(t, operator)
	task := r.task()
	for _, row := range sdkTable {
		for method := range strings.FieldsSeq(row.methods) {
			name := strings.TrimPrefix(row.client+"."+method, ".")
			if row.operator == noRequest {
				continue
			}
			asOperator, asTask := operator, task
			if endsAlloc[name] { // each in an allocation of its own
				mine := startRun(t, shortDir(t), sdkJob)
				asOperator = mine.operator()
				another := startRun(t, shortDir(t), sdkJob)
				another.operator() // once it runs
				asTask = another.task()
			}
			if got, err := w.call(t, asOperator, name); got != row.operator {
				t.Errorf("%s as the operator: %s, %v; want %s", name, got, err, row.operator)
			}
			awaitTasks(t, operator)
			if got, err := w.call(t, asTask, name); got != row.task {
				t.Errorf("%s as a task: %s, %v; want %s", name, got, err, row.task)
			}
			awaitTasks(t, operator)
		}
	}
}

// differsAtAgent is what calls get on the agent's socket, unlike the operator of an allocation.
var differsAtAgent = map[string]string{
	"Jobs.Scale": works, "Jobs.ScaleWithRequest": "400", // whose request has no group
}

// TestSDKCallsOfTheAgent makes every call on the agent's socket, about the same allocation as TestSDKCalls.
func TestSDKCallsOfTheAgent(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	operator := startRun(t, dir, sdkJob).operator()
	w := sdkWorld(t, operator)
	a := startAgent(t, dir)
	for _, row := range sdkTable {
		for method := range strings.FieldsSeq(row.methods) {
			name := strings.TrimPrefix(row.client+"."+method, ".")
			if row.operator == noRequest || endsAlloc[name] {
				continue
			}
			want := row.operator
			if differs := differsAtAgent[name]; differs != "" {
				want = differs
			}
			if got, err := w.call(t, a.client(), name); got != want {
				t.Errorf("%s: %s, %v; want %s", name, got, err, want)
			}
			awaitTasks(t, operator)
		}
	}
}

// awaitTasks waits until the tasks of the allocation run: some calls restart them.
func awaitTasks(t *testing.T, client *api.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for index := uint64(0); ; {
		alloc, meta, err := client.Allocations().Info(testAllocID, (&api.QueryOptions{WaitIndex: index}).WithContext(ctx))
		must.OK(t, err)
		if alloc.TaskStates["server"].State == "running" && alloc.TaskStates["other"].State == "running" {
			return
		}
		index = meta.LastIndex
	}
}

// sdkArguments is what calls are made with.
type sdkArguments struct {
	byType map[reflect.Type]any
	byName map[string][]any // by method, in the order of its parameters; nil for what its type gives
}

// call makes one call and returns the verdict on it.
func (w sdkArguments) call(t *testing.T, client *api.Client, name string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	method := sdkMethods()[name](client)
	var arguments []reflect.Value
	for i := range method.Type().NumIn() {
		of := method.Type().In(i)
		if method.Type().IsVariadic() && i == method.Type().NumIn()-1 {
			of = of.Elem()
		}
		arguments = append(arguments, w.argument(ctx, name, i, of))
	}
	return verdict(method.Call(arguments))
}

// argument returns what a call gets for its i-th parameter: what is said for it, or for its type, or something that is
// not empty.
func (w sdkArguments) argument(ctx context.Context, name string, i int, of reflect.Type) reflect.Value {
	if own := w.byName[name]; i < len(own) && own[i] != nil {
		return reflect.ValueOf(own[i])
	}
	if given, ok := w.byType[of]; ok {
		return reflect.ValueOf(given)
	}
	switch {
	case of == reflect.TypeFor[context.Context]():
		return reflect.ValueOf(ctx)
	case of == reflect.TypeFor[io.Reader]():
		return reflect.ValueOf(strings.NewReader(""))
	case of == reflect.TypeFor[io.Writer]():
		return reflect.ValueOf(io.Discard)
	case of == reflect.TypeFor[<-chan struct{}](): // what ends a stream
		return reflect.ValueOf(ctx.Done())
	case of.Kind() == reflect.String:
		return reflect.ValueOf("x").Convert(of)
	case of.Kind() == reflect.Pointer && of.Elem().Kind() == reflect.Struct:
		return reflect.New(of.Elem())
	case of == reflect.TypeFor[[]string]():
		return reflect.ValueOf([]string{"x"})
	}
	return reflect.Zero(of)
}

// verdict returns what the results of a call say.
func verdict(results []reflect.Value) (string, error) {
	for _, result := range results {
		switch v := result.Interface().(type) {
		case io.Closer:
			if err := v.Close(); err != nil {
				return sdkError, err
			}
		case <-chan error: // beside a channel of frames, which is nil when there is an error
			if results[0].IsNil() {
				return verdictOf(<-v)
			}
		case error:
			return verdictOf(v)
		}
	}
	return works, nil
}

// status finds that of an answer in the SDK's words; some calls keep no more of it.
var status = regexp.MustCompile(`(?:response code: |HTTP/1.1 |bad handshake.*|code )(\d{3})`)

func verdictOf(err error) (string, error) {
	if answer, ok := errors.AsType[api.UnexpectedResponseError](err); ok && answer.StatusCode() != 0 {
		return fmt.Sprint(answer.StatusCode()), err
	}
	if found := status.FindStringSubmatch(err.Error()); found != nil {
		return found[1], err
	}
	return sdkError, err
}

// sdkWorld returns the arguments of calls about an allocation of sdkJob, which has had three versions of its job.
func sdkWorld(t *testing.T, operator *api.Client) sdkArguments {
	t.Helper()
	job := func() *api.Job {
		job := asked(operator.Jobs().Info("demo", nil))(t)
		return job
	}
	changed := job()
	*changed.TaskGroups[0].Tasks[1].KillTimeout += 1e9
	submission := &api.JobSubmission{Source: "the text", Format: "hcl2"}
	asked(operator.Jobs().RegisterOpts(changed, &api.RegisterOptions{Submission: submission}, nil))(t)
	alloc := asked(operator.Allocations().Info(testAllocID, nil))(t)
	const log = "alloc/logs/server.stdout.0"
	return sdkArguments{
		byType: map[reflect.Type]any{reflect.TypeFor[*api.Allocation](): alloc, reflect.TypeFor[*api.Job](): job()},
		byName: sdkArgumentsOf(alloc, job(), log),
	}
}

// sdkJob is a job with everything that calls are about.
var sdkJob = strings.Replace(testJob, `    task "other" {
      driver = "raw_exec"
`, `    update { # the deployment runs until it is made to fail, however long that takes
      min_healthy_time  = "1h"
      healthy_deadline  = "2h"
      progress_deadline = "3h"
    }
    task "other" {
      driver = "raw_exec"
      action "greet" {
        command = "/bin/true"
      }
`, 1)

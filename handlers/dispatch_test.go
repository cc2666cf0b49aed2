package handlers_test

import (
	"errors"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// TestSDKDispatch: the SDK's dispatches and forced launches reach the runner as they are, and the answers name the
// child and an evaluation.
func TestSDKDispatch(t *testing.T) {
	alloc, got := newAlloc(t), []interfaces.Dispatch{}
	var fault error
	alloc.dispatch = func(d interfaces.Dispatch) (interfaces.Child, error) {
		got = append(got, d)
		return interfaces.Child{JobID: "demo/dispatch-1", Known: d.Token == "again"}, fault
	}
	s := newServer(t, alloc)
	client := s.sdk(t, operator)
	answer, _, err := client.Jobs().DispatchOpts(&api.DispatchOptions{JobID: "demo", Payload: []byte("p"),
		Meta: map[string]string{"k": "v"}, IdPrefixTemplate: "pre", Priority: 7}, &api.WriteOptions{IdempotencyToken: "t"})
	if err != nil || answer.DispatchedJobID != "demo/dispatch-1" {
		t.Fatalf("%+v, %v", answer, err)
	}
	if d := got[0]; string(d.Payload) != "p" || d.Meta["k"] != "v" || d.IDPrefix != "pre" || d.Priority != 7 ||
		d.Token != "t" {
		t.Errorf("dispatched %+v", d)
	}
	if eval, _, err := client.Evaluations().Info(answer.EvalID, nil); err != nil || eval.Status != "complete" {
		t.Errorf("evaluation = %+v, %v", eval, err)
	}
	answer, _, err = client.Jobs().Dispatch("demo", nil, nil, "", &api.WriteOptions{IdempotencyToken: "again"})
	if err != nil ||
		answer.EvalID != "" || answer.DispatchedJobID != "demo/dispatch-1" {
		t.Errorf("with the token of another: %+v, %v", answer, err)
	}
	id, _, err := client.Jobs().PeriodicForce("demo", nil)
	if eval, _, failed := client.Evaluations().Info(id, nil); err != nil || failed != nil ||
		eval.TriggeredBy != "periodic-job" {
		t.Errorf("forced: %v, evaluation %+v, %v", err, eval, failed)
	}
	for _, tc := range []struct {
		fault  error
		status int
		words  string
	}{
		{interfaces.ErrNotParameterized, 400, "the job is not parameterized"},
		{&interfaces.ChildError{Err: errors.New("it needs a payload")}, 400, "it needs a payload"},
		{&interfaces.ChildError{Err: errors.New("no space left"), Later: true}, 503, "no space left"},
		{interfaces.ErrTerminal, 409, ""},
		{interfaces.ErrStarting, 503, ""},
	} {
		fault = tc.fault
		_, _, err := client.Jobs().Dispatch("demo", nil, nil, "", nil)
		unexpected, ok := errors.AsType[api.UnexpectedResponseError](err)
		if !ok || unexpected.StatusCode() != tc.status || tc.words != "" && unexpected.Body() != tc.words {
			t.Errorf("%v: %v, want %d %q", tc.fault, err, tc.status, tc.words)
		}
	}
	_, _, err = client.Jobs().Dispatch("other", nil, nil, "", nil)
	wantSDKError(t, err, 404, "job not found")
	_, _, err = s.sdk(t, goodToken).Jobs().Dispatch("demo", nil, nil, "", nil)
	wantSDKError(t, err, 403, "Permission denied")
}

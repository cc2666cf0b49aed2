package agent

import (
	"errors"
	"fmt"
	"testing"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/handlers/apierror"
)

// TestAPIErrors: what the runner's errors are to a client.
func TestAPIErrors(t *testing.T) {
	fault := errors.New("a fault")
	for _, test := range []struct {
		err    error
		update bool
		status int
		words  string
	}{
		{interfaces.ErrTaskNotFound, false, 404, "Task not found"},
		{interfaces.ErrTaskNotRunning, false, 409, "Task not running"},
		{interfaces.ErrTerminal, false, 409, "restart of an alloc that should not run"},
		{interfaces.ErrTerminal, true, 409, "the allocation is ending or over: it takes no other job"},
		{interfaces.ErrStarting, false, 503, "the allocation is being set up or resumed: try again"},
		{interfaces.ErrInvalidJob, true, 400, "x: " + interfaces.ErrInvalidJob.Error()},
		{&interfaces.DestructiveError{Changes: []string{"a", "b"}}, true, 409, "can't be updated in place: a; b"},
		{state.ErrFile, true, 503, "the allocation goes on as it is: x: " + state.ErrFile.Error()},
	} {
		convert := apiError
		if test.update {
			convert = updateError
		}
		got, ok := errors.AsType[*apierror.Error](convert(fmt.Errorf("x: %w", test.err)))
		if ok && errors.Is(test.err, interfaces.ErrStarting) != (got.RetryAfter > 0) {
			t.Errorf("%v is to be tried again after %v", test.err, got.RetryAfter)
		}
		if !ok || got.Kind.Status() != test.status || got.Message != test.words || !errors.Is(got, test.err) {
			t.Errorf("%v is %+v, want %d %q", test.err, got, test.status, test.words)
		}
	}
	if got := apiError(fault); !errors.Is(got, fault) || got.Error() != fault.Error() {
		t.Errorf("a fault is %v, want it as it is", got)
	}
}

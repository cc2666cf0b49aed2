package allocrunner

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/same"
)

// TestSetUpWaitIsBounded: a request is told that the allocation is starting once it has waited long enough.
func TestSetUpWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fsm
		m.init(state{})
		m.handle(setUpBegun{})
		since := time.Now()
		if err := m.awaitSetUp(t.Context()); !errors.Is(err, interfaces.ErrStarting) || time.Since(since) != setUpWait {
			t.Errorf("%v after %v, want ErrStarting after %v", err, time.Since(since), setUpWait)
		}
		time.AfterFunc(setUpWait/2, func() { m.handle(setUpFailed{}) })
		same.Error(t, nil, m.awaitSetUp(t.Context()), "the set-up has failed meanwhile")
	})
}

package client

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// TestClassify says who has an allocation by each pair of an answer and a saved state, at once and when the timeouts
// have passed.
func TestClassify(t *testing.T) {
	var (
		alloc   = &api.Allocation{ID: "a"}
		running = &interfaces.Saved{Alloc: alloc}
		ended   = &interfaces.Saved{Alloc: alloc, Terminal: true}
		silent  = fmt.Errorf("%w: connection refused", ErrNoAnswer)
		timeout = fmt.Errorf("%w: %w", ErrNoAnswer, context.DeadlineExceeded)
		refusal = &StatusError{http.StatusForbidden, "Forbidden"}
	)
	for _, tc := range []struct {
		name    string
		seen    observation
		want    Holder
		first   bool // the first look settles it, for those who are patient
		waiting bool // a look after an hour does
	}{
		{"it answers", observation{alloc: alloc}, Serving, true, true},
		{"it refuses", observation{answer: refusal, state: state.ErrInUse}, Refusing, false, true},
		{"it takes too long", observation{answer: timeout, state: state.ErrInUse}, Hanging, true, true},
		{"it is starting or leaving", observation{answer: silent, state: state.ErrInUse}, Hanging, false, true},
		{"it fails", observation{answer: &StatusError{http.StatusInternalServerError, "broken"}, state: state.ErrInUse},
			Hanging, false, true},
		{"it has left", observation{answer: silent, saved: running}, Nobody, false, true},
		{"it has ended", observation{answer: silent, saved: ended}, Ended, true, true},
		{"it has ended and refuses", observation{answer: refusal, saved: ended}, Ended, true, true},
		{"it never was", observation{answer: silent, state: state.ErrNotFound}, Unreadable, false, true},
		{"it is damaged", observation{answer: silent, state: state.ErrDamaged}, Unreadable, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if found, settled := classify(tc.seen, 0, Following); found.Holder != tc.want || settled != tc.first {
				t.Errorf("at first: %v, settled: %t; want %v, %t", found.Holder, settled, tc.want, tc.first)
			}
			found, settled := classify(tc.seen, time.Hour, Following)
			if found.Holder != tc.want || settled != tc.waiting {
				t.Errorf("after an hour: %v, settled: %t; want %v, %t", found.Holder, settled, tc.want, tc.waiting)
			}
			if has := found.Alloc != nil; has == (found.Err != nil) {
				t.Errorf("an allocation: %t, an error: %v", has, found.Err)
			}
			if _, settled := classify(tc.seen, 0, Timeouts{}); !settled {
				t.Error("without timeouts one look does not settle it")
			}
		})
	}
	if found, _ := classify(observation{answer: silent, state: state.ErrInUse}, 0, Timeouts{}); found.Holder != Changing {
		t.Errorf("without timeouts, one that is starting or leaving is %v", found.Holder)
	}
}

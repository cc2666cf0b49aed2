package client

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
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

// TestATaskapiThatTakesLongToLeave is followed by another one a moment later: they are not taken for nobody.
func TestATaskapiThatTakesLongToLeave(t *testing.T) {
	silent := fmt.Errorf("%w: connection refused", ErrNoAnswer)
	for _, tc := range []struct {
		name    string
		without time.Duration
		want    Holder
	}{
		{"the next one comes soon", Following.Nobody / 2, Serving},
		{"the next one comes late", 2 * Following.Nobody, Nobody},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leaving := time.Now().Add(3 * Following.Nobody)
				found := settle(t.Context(), Following, func() observation {
					switch now := time.Now(); {
					case now.Before(leaving):
						return observation{answer: silent, state: state.ErrInUse}
					case now.Before(leaving.Add(tc.without)):
						return observation{answer: silent, saved: &interfaces.Saved{Alloc: &api.Allocation{}}}
					}
					return observation{alloc: &api.Allocation{}}
				})
				if found.Holder != tc.want {
					t.Errorf("found %v, want %v", found.Holder, tc.want)
				}
			})
		})
	}
}

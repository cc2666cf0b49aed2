package client

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/wake"
)

// Holder says who has an allocation.
type Holder int

// Every holder.
const (
	Nobody     Holder = iota // no taskapi has it, and it has not ended; its tasks may be running
	Serving                  // a taskapi runs it and answers
	Refusing                 // a taskapi runs it and refuses the operator's token
	Hanging                  // a taskapi has it and does not answer
	Changing                 // a taskapi has it, and is starting or leaving
	Ended                    // no taskapi has it, and it has ended
	Unreadable               // no taskapi has it, and its state is missing or can't be read
)

// Location says who has an allocation.
type Location struct {
	Holder Holder
	Alloc  *api.Allocation   // of Nobody, Serving, Ended
	Body   []byte            // Alloc as the API answers it; of Serving
	Saved  *interfaces.Saved // of Nobody, Ended
	Err    error             // of Refusing, Hanging, Changing, Unreadable: the answer, or why there is none
}

// Timeouts say how long Locate repeats its look before it answers. With the zero value it looks once.
type Timeouts struct {
	Busy   time.Duration // for a taskapi that is starting or leaving
	Nobody time.Duration // for another taskapi to resume the allocation
}

// The timeouts of the commands.
var (
	Brief     = Timeouts{Busy: 2 * time.Second}                  // for those that show many allocations
	Patient   = Timeouts{Busy: BusyTimeout}                      // for those that change one
	Following = Timeouts{Busy: BusyTimeout, Nobody: time.Second} // for those that follow one from a taskapi to the next
)

// observation is one look at an allocation.
type observation struct {
	alloc  *api.Allocation
	body   []byte
	answer error // why there is no alloc
	saved  *interfaces.Saved
	state  error // why there is no saved; nil when it was not read
}

// Locate finds out who has the allocation. With a timeout for a taskapi that is starting or leaving, the answer is
// never Changing: a taskapi that takes longer is Hanging.
func (c *Client) Locate(ctx context.Context, p Timeouts) Location {
	if err := c.frozen(ctx); err != nil { // before any time-out passes
		return Location{Holder: Hanging, Err: err}
	}
	return settle(ctx, p, func() (o observation) {
		if o.alloc, o.body, o.answer = c.Allocation(ctx); o.answer != nil {
			o.saved, o.state = c.dir.Saved(c.id)
		}
		return o
	})
}

// settle looks until a look settles who has an allocation. The time without a taskapi begins when one was last seen to
// have it: between one that takes long to leave and the next, there is none for a moment.
func settle(ctx context.Context, p Timeouts, look func() observation) Location {
	for began, left := time.Now(), time.Now(); ; {
		o, since := look(), left
		if errors.Is(o.state, state.ErrInUse) {
			since, left = began, time.Now()
		}
		found, settled := classify(o, time.Since(since), p)
		if settled || ctx.Err() != nil {
			return found
		}
		_ = wake.Sleep(ctx, Pause)
	}
}

// classify says who has an allocation by one look at it. settled is false if another look may show more. waited is the
// time since the first look, or the time without a taskapi.
func classify(o observation, waited time.Duration, p Timeouts) (found Location, settled bool) {
	switch inUse := errors.Is(o.state, state.ErrInUse); {
	case o.answer == nil:
		return Location{Holder: Serving, Alloc: o.alloc, Body: o.body}, true
	case inUse && Refused(o.answer):
		return Location{Holder: Refusing, Err: o.answer}, waited >= min(refusedTimeout, p.Busy)
	case inUse && errors.Is(o.answer, context.DeadlineExceeded): // it had its time
		return Location{Holder: Hanging, Err: o.answer}, true
	case inUse && p.Busy == 0:
		return Location{Holder: Changing, Err: o.answer}, true
	case inUse:
		return Location{Holder: Hanging, Err: o.answer}, waited >= p.Busy
	case o.state != nil: // there is none for a moment while a directory is made
		return Location{Holder: Unreadable, Err: o.state}, waited >= p.Nobody || !errors.Is(o.state, state.ErrNotFound)
	case o.saved.Terminal:
		return Location{Holder: Ended, Alloc: o.saved.Alloc, Saved: o.saved}, true
	}
	return Location{Holder: Nobody, Alloc: o.saved.Alloc, Saved: o.saved}, waited >= p.Nobody
}

// Listening returns the operator's socket as it lies in its directory, nil when there is none. See AwaitClosed.
func (c *Client) Listening() os.FileInfo {
	info, _ := os.Stat(c.dir.OperatorSocket(c.id)) // nil with an error
	return info
}

// AwaitClosed waits until the operator's socket is gone or replaced. A taskapi whose allocation has ended closes the
// socket once no client that has read the end has an open connection.
func (c *Client) AwaitClosed(ctx context.Context, was os.FileInfo) {
	c.Close()
	if was == nil {
		return
	}
	for since := time.Now(); ctx.Err() == nil && time.Since(since) < closedTimeout; time.Sleep(Pause) {
		if now := c.Listening(); now == nil || !os.SameFile(was, now) {
			return
		}
	}
}

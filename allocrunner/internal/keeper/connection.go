package keeper

import (
	"fmt"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// connState is the state of a Supervisor's connection to its keeper:
//
//	              broke                  reattached
//	connected ───────────────▶ broken ───────────────▶ connected
//	  │   ▲                       │
//	  │   │ keeperStarted         │ keeperGone
//	  │   └─────────── lost ◀─────┘
//	  │ superseded
//	  └─────────────▶ replaced
//
//	each of them ──closing──▶ closed
type connState int

const (
	connConnected connState = iota // calls go to the keeper
	connBroken                     // calls wait until it is known whether the keeper lives
	// the keeper was killed, and so were all of its processes that could be found; the next start makes another keeper
	connLost
	connReplaced // another client controls the keeper
	connClosed   // by Close or Detach
)

// connEvent is what happens to the connection.
type connEvent int

const (
	broke         connEvent = iota // the connection has ended, and this program did not end it
	reattached                     // there is a new connection to the same keeper
	keeperGone                     // no keeper runs, and none of the processes of its tasks that were found
	keeperStarted                  // there is another keeper
	superseded                     // the keeper said that another client controls it
	closing                        // Close or Detach was called
)

// next returns the state after an event. An event that does not fit the state changes nothing: after the Supervisor was
// closed, the end of an earlier operation does not matter.
func (s connState) next(e connEvent) connState {
	switch {
	case e == closing:
		return connClosed
	case s == connConnected && e == broke:
		return connBroken
	case s == connBroken && e == reattached, s == connLost && e == keeperStarted:
		return connConnected
	case s == connBroken && e == keeperGone:
		return connLost
	case s == connConnected && e == superseded:
		return connReplaced
	}
	return s
}

// connection is one connection to a keeper, with the reason of its end once that is known.
type connection struct {
	client  *Client
	settled chan struct{} // closed when it has ended and the state is no longer broken
	lost    *lostKeeper   // nil when the keeper lives, or when that is unknown. Set before settled is closed
}

// lostKeeper is a keeper that was killed, together with all of its processes that could be found.
type lostKeeper struct {
	orphans OrphanCounts
	last    map[string]LastStatus // the latest process of each task, with its exit if the keeper had recorded that
}

// exit returns how a task's process ended, if the lost keeper could still record that.
func (l *lostKeeper) exit(task string) (interfaces.ExitResult, bool) {
	if s := l.last[task]; s.Exit != nil {
		return *s.Exit, true
	}
	return interfaces.ExitResult{}, false
}

// errorFor returns the error of a task whose keeper was lost.
func (l *lostKeeper) errorFor(task string) error {
	lost := l.last[task].LostError()
	if n := l.orphans[task]; n > 0 {
		return fmt.Errorf("%w; %d more of its processes had to be ended", lost, n)
	}
	return lost
}

var _ drivers.Supervisor = (*Supervisor)(nil)

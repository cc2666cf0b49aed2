package keeper

import "testing"

// TestConnState goes through every state and event: what is not in the diagram changes nothing.
func TestConnState(t *testing.T) {
	diagram := map[connState]map[connEvent]connState{
		connConnected: {broke: connBroken, superseded: connReplaced},
		connBroken:    {reattached: connConnected, keeperGone: connLost},
		connLost:      {keeperStarted: connConnected},
	}
	for s := connConnected; s <= connClosed; s++ {
		for e := broke; e <= closing; e++ {
			want, ok := diagram[s][e]
			switch {
			case e == closing:
				want = connClosed
			case !ok:
				want = s
			}
			if got := s.next(e); got != want {
				t.Errorf("state %d, event %d: %d, want %d", s, e, got, want)
			}
		}
	}
}

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

// TestConnStateSequences goes through every sequence of six events: a keeper is taken for lost only after its
// connection broke, another is used only after that, and who was replaced or has closed never has a keeper again.
func TestConnStateSequences(t *testing.T) {
	var walk func(s connState, depth int)
	walk = func(s connState, depth int) {
		for e := broke; e <= closing && depth > 0; e++ {
			is := s.next(e)
			switch {
			case is == connLost && s != connLost && s != connBroken,
				is == connConnected && s == connBroken && e != reattached,
				is == connConnected && s == connLost && e != keeperStarted,
				s == connReplaced && is != connReplaced && is != connClosed,
				s == connClosed && is != connClosed:
				t.Fatalf("from %d to %d by event %d", s, is, e)
			}
			walk(is, depth-1)
		}
	}
	walk(connConnected, 6)
}

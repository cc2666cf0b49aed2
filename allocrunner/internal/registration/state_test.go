package registration

import "testing"

// TestNext is the whole transition function.
func TestNext(t *testing.T) {
	t.Parallel()
	const same, another = 0, 1
	type to struct {
		phase Phase
		count int // of registrations more
	}
	want := map[Phase]map[Event]to{
		Waiting: {Found: {Held, same}, Began: {Registered, another}, Resumed: {Registered, another},
			Started: {Registered, another}, Renewed: {Waiting, same},
			Ended: {Waiting, same}, Dropped: {Closed, same}},
		Held: {Found: {Held, same}, Began: {Registered, same}, Resumed: {Registered, same},
			Started: {Registered, another}, Renewed: {Registered, another},
			Ended: {Absent, same}, Dropped: {Closed, same}},
		Registered: {Found: {Registered, same}, Began: {Registered, same}, Resumed: {Registered, same},
			Started: {Registered, another},
			Renewed: {Registered, another},
			Ended:   {Absent, same}, Dropped: {Closed, same}},
		Absent: {Found: {Absent, same}, Began: {Registered, another}, Resumed: {Absent, same},
			Started: {Registered, another},
			Renewed: {Registered, another},
			Ended:   {Absent, same}, Dropped: {Closed, same}},
		Closed: {Found: {Closed, same}, Began: {Closed, same}, Resumed: {Closed, same},
			Started: {Closed, same}, Renewed: {Closed, same},
			Ended: {Closed, same}, Dropped: {Closed, same}},
	}
	for phase := Waiting; phase <= Closed; phase++ {
		for event := Found; event <= Dropped; event++ {
			w, ok := want[phase][event]
			got := State{phase, 7}.Next(event)
			if !ok || got != (State{w.phase, 7 + w.count}) {
				t.Errorf("phase %d, event %d: got %+v, want %+v", phase, event, got, w)
			}
		}
	}
}

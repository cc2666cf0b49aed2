package registration

// Phase is how far the services of one owner, the group or a task, are in their life.
//
//	              Began*, Started*                 Ended
//	waiting ──────────────────────> registered ─────────────> absent
//	   │                              ^   ^                     │
//	   │ Found               Began    │   └─────────────────────┘
//	   └──────────> held ─────────────┘    Began*, Started*, Renewed*
//	                 └─────────────── Ended ────────────────> absent
//
//	held, registered ──Started*, Renewed*──> registered
//	each of them ──Dropped──> closed
//
//	* another registration begins
//
// A registration lasts until the services leave, or begin again with a restart: what was known of one, such as its checks' results, is not
// the next one's.
type Phase int

const (
	Waiting    Phase = iota // nothing has begun
	Held                    // an earlier runner has registered them, and what becomes of them is not known yet
	Registered              // others can find them
	Absent                  // they have left, and may come back
	Closed                  // they have left for good
)

// Event is what happens to an owner's services.
type Event int

const (
	Found   Event = iota // by a runner that resumes the allocation: their task is likely to run
	Began                // what they lead to is to be found, as it was before if it was
	Started              // a process of their task has started
	Renewed              // tasks are restarted together
	Ended                // what they lead to is being stopped, or has ended
	Dropped              // nothing is registered any more
)

// Life is where the services of one owner are in their life. Registrations counts those that this runner has begun.
type Life struct {
	Phase         Phase
	Registrations int
}

// Next is the transition function. Events that mean nothing in a phase change nothing.
func (l Life) Next(e Event) Life {
	switch {
	case l.Phase == Closed:
	case e == Dropped:
		l.Phase = Closed
	case e == Ended && (l.Phase == Held || l.Phase == Registered):
		l.Phase = Absent
	case e == Found && l.Phase == Waiting:
		l.Phase = Held
	case e == Began && l.Phase == Held: // it is the same registration
		l.Phase = Registered
	case e == Began && l.Phase != Registered, e == Started, e == Renewed && l.Phase != Waiting:
		l.Phase = Registered
		l.Registrations++
	}
	return l
}

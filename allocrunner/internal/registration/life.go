package registration

// Phase is a phase in the life of one owner's services. The owner is the group or a task.
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
// A registration lasts until the services are deregistered, or begin again with a restart. The next registration has
// nothing of it, such as the results of checks.
type Phase int

const (
	Waiting    Phase = iota // nothing has begun
	Held                    // an earlier runner has registered them, and it is not known yet whether they stay
	Registered              // others can find them
	Absent                  // they are deregistered, and may come back
	Closed                  // they are deregistered for good
)

// Event is an event in the life of an owner's services.
type Event int

const (
	Found   Event = iota // a runner that resumes the allocation has found them: their task is likely to run
	Began                // their task can be reached; if it could before, their registration continues
	Started              // a process of their task has started
	Renewed              // tasks are restarted together
	Ended                // their task is being stopped, or has ended
	Dropped              // nothing is registered any more
)

// Life is the state of one owner's services. Registrations counts the registrations that this runner has begun.
type Life struct {
	Phase         Phase
	Registrations int
}

// Next is the transition function. An event that has no meaning in a phase changes nothing.
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

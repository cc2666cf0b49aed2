package registration

// Phase is the phase of one owner's services. The owner is the group or a task.
//
//	         Began*, Resumed*, Started*            Ended
//	waiting ──────────────────────> registered ─────────────> absent
//	   │                              ^   ^                     │
//	   │ Found      Began, Resumed    │   └─────────────────────┘
//	   └──────────> held ─────────────┘    Began*, Started*, Renewed*
//	                 └─────────────── Ended ────────────────> absent
//
//	held, registered ──Started*, Renewed*──> registered
//	each of them ──Dropped──> closed
//
//	* another registration begins
//
// A registration lasts until the services are deregistered, or begin again with a restart. The next registration
// inherits nothing from it, such as the results of checks.
type Phase int

const (
	Waiting    Phase = iota // nothing has begun
	Held                    // an earlier runner has registered them, and it is not known yet whether they stay
	Registered              // others can find them
	Absent                  // they are deregistered, and may come back
	Closed                  // they are deregistered for good
)

// Event is an event of an owner's services.
type Event int

const (
	Found   Event = iota // a runner that resumes the allocation has found them: their task is likely to run
	Began                // their task can be reached; if it could before, their registration continues
	Resumed              // as Began, for a process of an earlier runner; it means nothing once its task is being stopped
	Started              // a process of their task has started
	Renewed              // tasks are restarted together
	Ended                // their task is being stopped, or has ended
	Dropped              // nothing is registered any more
)

// State is the state of one owner's services. Registrations counts the registrations that this runner has begun.
// The owner calls providers by comparing states, so Next returns no effects.
type State struct {
	Phase         Phase
	Registrations int
}

// Next returns the state after an event. An event that does not fit the phase changes nothing.
func (s State) Next(e Event) State {
	switch {
	case s.Phase == Closed:
	case e == Dropped:
		s.Phase = Closed
	case e == Ended && (s.Phase == Held || s.Phase == Registered):
		s.Phase = Absent
	case e == Found && s.Phase == Waiting:
		s.Phase = Held
	case (e == Began || e == Resumed) && s.Phase == Held: // it is the same registration
		s.Phase = Registered
	case e == Began && s.Phase != Registered, e == Resumed && s.Phase == Waiting, e == Started,
		e == Renewed && s.Phase != Waiting:
		s.Phase = Registered
		s.Registrations++
	}
	return s
}

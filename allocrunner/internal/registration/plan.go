package registration

import (
	"reflect"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/services"
)

// known is a provider's registration of a service.
type known struct {
	provider     string
	registration int                         // the owner's State.Registrations
	instance     *interfaces.ServiceInstance // nil: an earlier process's, or the provider may not have it
}

// desired is the wanted content of the providers: each owner's state, and its services in the present version of the
// job.
type desired struct {
	states   map[string]State // by task; the group's has the empty name
	services services.Owned
	dropped  bool // all states are closed
}

// steps are calls of providers, in this order. Services that begin another registration are deregistered before.
// Services that an update removes are deregistered after their replacements have been registered.
type steps struct {
	before   map[string][]string // IDs by provider
	register map[string][]known
	after    map[string][]string
}

// plan returns the calls of providers that are needed. It ignores services of unknown providers.
func plan(providers map[string]interfaces.ServiceProvider, want desired, present map[string]known) steps {
	todo := steps{before: map[string][]string{}, register: map[string][]known{}, after: map[string][]string{}}
	stays := map[string]bool{}
	for task, list := range want.services {
		state := want.states[task]
		for _, instance := range list {
			wanted := known{instance.Service.Provider, state.Registrations, instance}
			was, isKnown := present[instance.ID]
			switch {
			case state.Phase == Held, state.Phase == Registered && isKnown && was.same(wanted) &&
				reflect.DeepEqual(was.instance, instance):
				stays[instance.ID] = true
			case state.Phase == Registered && providers[wanted.provider] != nil:
				stays[instance.ID] = true
				todo.register[wanted.provider] = append(todo.register[wanted.provider], wanted)
				if isKnown && !was.same(wanted) {
					todo.before[was.provider] = append(todo.before[was.provider], instance.ID)
				}
			}
		}
	}
	for id, was := range present {
		if !stays[id] {
			todo.after[was.provider] = append(todo.after[was.provider], id)
		}
	}
	return todo
}

// same reports whether both belong to one registration.
func (k known) same(other known) bool {
	return k.provider == other.provider && k.registration == other.registration
}

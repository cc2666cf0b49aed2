package registration

import (
	"reflect"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/services"
)

// known is what a provider has of a service.
type known struct {
	provider     string
	registration int                         // of its owner
	instance     *interfaces.ServiceInstance // nil: an earlier process's, or it is not sure that the provider has it
}

// state is what is to be known: each owner's life, and its services in the present version of the job.
type state struct {
	lives    map[string]Life // by task; the group's has the empty name
	services services.Owned
	dropped  bool // all lives are closed
}

// steps are what to tell providers, in this order: services that begin another registration leave before; those that an update removes leave
// after what takes their place has come.
type steps struct {
	before   map[string][]string // IDs by provider
	register map[string][]known
	after    map[string][]string
}

func (s steps) empty() bool { return len(s.before)+len(s.register)+len(s.after) == 0 }

// plan returns what to tell providers. Services of a provider that there is not are nobody's.
func plan(has func(provider string) bool, s state, present map[string]known) steps {
	todo := steps{before: map[string][]string{}, register: map[string][]known{}, after: map[string][]string{}}
	stays := map[string]bool{}
	for task, list := range s.services {
		life := s.lives[task]
		for _, instance := range list {
			wanted := known{instance.Service.Provider, life.Registrations, instance}
			was, isKnown := present[instance.ID]
			switch {
			case life.Phase == Held, life.Phase == Registered && isKnown && was.same(wanted) && reflect.DeepEqual(was.instance, instance):
				stays[instance.ID] = true
			case life.Phase == Registered && has(wanted.provider):
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

// same reports whether two are of one registration.
func (k known) same(other known) bool {
	return k.provider == other.provider && k.registration == other.registration
}

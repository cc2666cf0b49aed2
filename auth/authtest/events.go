package authtest

import (
	"taskapi/allocrunner/cluster/registry"
	"taskapi/handlers"
)

// announceServices makes events of what happens to the services of a namespace, until the server is closed.
func (s *Server) announceServices(namespace string) {
	follower := s.registry.Follow(s.running, namespace)
	s.background.Go(func() {
		follower.Run(s.running, func(changes []registry.Change) {
			events := make([]handlers.ServiceEvent, len(changes))
			for i, c := range changes {
				events[i] = handlers.ServiceEvent(c)
			}
			s.events.PutServices(events)
		})
	})
}

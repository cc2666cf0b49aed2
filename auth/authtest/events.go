package authtest

// announceServices makes events of what happens to the services of a namespace, until the server is closed.
func (s *Server) announceServices(namespace string) {
	follower := s.registry.Follow(s.running, namespace)
	s.background.Go(func() { follower.Run(s.running, s.events.PutServices) })
}

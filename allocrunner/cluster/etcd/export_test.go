package etcd

import "time"

// IdleTime is how long a copy is kept that nobody uses.
const IdleTime = idleTime

// EndIdle ends the copies that are idle at a time, and returns the prefixes of the others.
func (s *Store) EndIdle(at time.Time) (left []string) {
	s.mu.RLock()
	views := append([]*view{}, s.views...)
	s.mu.RUnlock()
	for _, v := range views {
		if v.endIdle(at) {
			v.cancel()
		} else {
			left = append(left, v.prefix)
		}
	}
	return left
}

// Die ends the store and its leases as the death of the process does: etcd hears nothing of it.
func (s *Store) Die() error {
	s.cancel()
	return s.Close()
}

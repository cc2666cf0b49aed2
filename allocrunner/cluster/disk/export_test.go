package disk

// SetMaxLog bounds how long the log may become while it can't be rewritten.
func (s *Store) SetMaxLog(n int64) { s.maxLog = n }

// Place returns the store's place in the queue at the lock, 0 for none.
func (s *Store) Place() int { return s.queue.place }

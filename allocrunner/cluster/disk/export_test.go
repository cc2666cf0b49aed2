package disk

// SetMaxLog bounds how long the log may become while it can't be rewritten.
func (s *Store) SetMaxLog(n int64) { s.maxLog = n }

package keeper

import (
	"time"

	"taskapi/internal/memory"
)

// trimDelay is the time from a change until memory is given back. It is long enough for the consequences of the change
// to be over.
const trimDelay = time.Second

// trimSoon gives memory back trimDelay after a change. Further changes don't postpone it: otherwise a task that
// restarts again and again would prevent it for ever.
func (s *server) trimSoon() {
	if s.trims.CompareAndSwap(false, true) {
		time.AfterFunc(trimDelay, func() {
			s.trims.Store(false)
			memory.GiveBack()
		})
	}
}

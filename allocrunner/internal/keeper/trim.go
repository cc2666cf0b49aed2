package keeper

import (
	"time"

	"taskapi/internal/memory"
)

// trimDelay is how long after a change memory is given back: long enough for what the change brought about to be over.
const trimDelay = time.Second

// trimSoon makes memory be given back once what has just changed is over. More changes don't put it off, or a task that
// is started again and again would keep it from ever happening.
func (s *server) trimSoon() {
	if s.trims.CompareAndSwap(false, true) {
		time.AfterFunc(trimDelay, func() {
			s.trims.Store(false)
			memory.GiveBack()
		})
	}
}

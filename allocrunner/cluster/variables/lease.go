package variables

import (
	"encoding/json"
	"math"
	"time"
)

// lease says when a lock was acquired or renewed last.
type lease struct {
	ID    string        `json:"id"` // of the lock
	Boot  string        `json:"boot"`
	Since time.Duration `json:"since_ns"`
}

func newLease(lockID string, now Moment) lease { return lease{lockID, now.Boot, now.Since} }

func (l lease) encode() []byte {
	value, _ := json.Marshal(l) // strings and numbers can always be encoded
	return value
}

// decodeLease reads a stored lease; one that can't be read is that of no lock.
func decodeLease(value []byte) lease {
	var l lease
	if json.Unmarshal(value, &l) != nil {
		return lease{}
	}
	return l
}

// phase is how a lock stands at a moment:
//
//	held ──── TTL twice without a renewal ────▶ delayed ──── the lock's delay ────▶ free
//	  ▲                                            │                                  ▲
//	  └─ renewal   release ──────────────────────▶ └──────────── release ─────────────┘
//
// No process has to be there for it: the phase is computed from the lock and its lease when it is looked at. Who waits for a change writes that
// it is free.
type phase int

const (
	free    phase = iota // there is no lock, or its time is over
	held                 // by the one who has the ID
	delayed              // it was not renewed in time; the ID is good for writing and releasing still, and nobody can acquire it
	unknown              // its lease tells nothing of this start of this machine: it is held, and its time begins when somebody is refused for it
)

// grace is how many TTLs a lock is held without a renewal, as in Nomad: holders need time to be late.
const grace = 2

// left returns how long it takes from a moment until the lock is free.
func (l *lock) left(of lease, now Moment) time.Duration {
	held := grace*l.TTL - (now.Since - of.Since)
	return held + min(l.Delay, math.MaxInt64-max(held, 0))
}

// phase returns how the lock stands at a moment.
func (l *lock) phase(of lease, now Moment) phase {
	age := now.Since - of.Since
	switch {
	case of.ID != l.ID, of.Boot != now.Boot, age < 0:
		return unknown
	case age < grace*l.TTL:
		return held
	case age-grace*l.TTL < l.Delay: // a sum could overflow
		return delayed
	}
	return free
}

package variables

import (
	"encoding/json"
	"math"
	"sync"
	"time"

	"taskapi/allocrunner/cluster"
)

// lease records when a lock was acquired or renewed last.
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

// decodeLease reads a stored lease. One that can't be read fits no lock.
func decodeLease(value []byte) lease {
	var l lease
	if json.Unmarshal(value, &l) != nil {
		return lease{}
	}
	return l
}

// observer records when this process has seen the latest renewals of locks by other machines, whose clocks it can't
// read. It sees a renewal after the holder has begun the renewal. So a lock is never free here before it has ended
// there.
type observer struct {
	mu   sync.Mutex // guards seen
	seen map[string]observed
}

type observed struct {
	index uint64 // of the entry
	since time.Duration
}

// mostObserved bounds the memory for locks that are gone. A lock whose renewal is forgotten is held for longer.
const mostObserved = 2 * MaxVariables

// lease returns the lease of another machine as if this one had renewed it when this process saw it first.
func (o *observer) lease(entry cluster.Entry, of lease, now Moment) lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	first, known := o.seen[entry.Key]
	if !known || first.index < entry.ModifyIndex {
		if len(o.seen) >= mostObserved {
			clear(o.seen)
		}
		first = observed{entry.ModifyIndex, now.Since}
		o.seen[entry.Key] = first
	}
	return lease{of.ID, now.Boot, first.since}
}

// phase is the phase of a lock at a moment:
//
//	held ──── TTL twice without a renewal ────▶ delayed ──── the lock's delay ────▶ free
//	  ▲                                            │                                  ▲
//	  └─ renewal   release ──────────────────────▶ └──────────── release ─────────────┘
//
// The phase changes without any process: it is computed from the lock and its lease when somebody looks at them. A
// process that waits for a change writes that the lock is free.
type phase int

const (
	free    phase = iota // there is no lock, or it has expired
	held                 // by the caller that has its ID
	delayed              // it was not renewed in time: its holder can still write and release it
	unknown              // its lease is from before the last start of the machine: it is held
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

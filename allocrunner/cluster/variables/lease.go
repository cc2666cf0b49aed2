package variables

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Moment is a time on a clock that all processes of a machine share, that nobody sets, and that goes on while the machine is suspended.
type Moment struct {
	Boot  string        // which start of which machine
	Since time.Duration // the time since then
}

// now returns the moment by CLOCK_BOOTTIME, clock_gettime(2).
func now() (Moment, error) {
	boot, err := bootID()
	if err != nil {
		return Moment{}, err
	}
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return Moment{}, err
	}
	return Moment{boot, time.Duration(t.Nano())}, nil
}

// bootID returns the kernel's name for this start of the machine, random(4).
var bootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
})

// lease says when a lock was acquired or renewed last.
type lease struct {
	ID    string        `json:"id"` // of the lock
	Boot  string        `json:"boot"`
	Since time.Duration `json:"since_ns"`
}

func newLease(lockID string, now Moment) lease { return lease{lockID, now.Boot, now.Since} }

func (l lease) encode() ([]byte, error) { return json.Marshal(l) }

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

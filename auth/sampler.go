package auth

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// burstTime is how long a kind of record must be within its allowance for its burst to be over.
	burstTime = 10 * time.Second
	// burstAllowance is how many of a kind are written in that time, and doneAllowance how many of changes that were made: they are the
	// very thing that the log is for, and each takes more of the caller's time.
	burstAllowance = 20
	doneAllowance  = 200
	// kindsKept is how many kinds are told apart of callers with a token that was verified, and as many of those without: who makes up
	// callers can't make the others be forgotten.
	kindsKept = 1024
)

// kind is which records are sampled together: those of one caller with one token, of one outcome and reason.
type kind struct {
	alloc, task string
	uid         uint32
	token       string // jti
	outcome     Outcome
	reason      string
	status      int
}

func kindOf(r Record) kind {
	return kind{alloc: r.Alloc, task: r.Task, uid: r.UID, token: r.TokenID, outcome: r.Outcome, reason: r.Reason, status: r.Status}
}

// others is the kind of all callers that are not told apart, because there are too many. There are few such kinds.
func (k kind) others() kind { return kind{outcome: k.outcome, reason: k.reason, status: k.status} }

// allowance is how many are written in a burst.
func (k kind) allowance() int {
	if k.outcome == Done || k.outcome == Begun {
		return doneAllowance
	}
	return burstAllowance
}

// burst is what has been seen of a kind.
type burst struct {
	since      time.Time // its beginning, or when its count was written
	passed     int       // since then
	suppressed uint64    // since then
	latest     Record    // of those
}

// over reports that the kind has been quiet for long enough.
func (b *burst) over(now time.Time) bool {
	age := now.Sub(b.since)
	return b.suppressed == 0 && (age >= burstTime || age < 0)
}

// sampler lets the first records of each kind through and counts the others. The latest of those is written with the number of the
// rest: when a burst ends, and every burstTime while it lasts.
type sampler struct {
	write func(Record)
	total atomic.Uint64 // left out for good

	flushing sync.Mutex // held while counts are written; never within mu

	mu      sync.Mutex                   // guards the fields below
	known   *simplelru.LRU[kind, *burst] // of callers whose token was verified
	unknown *simplelru.LRU[kind, *burst]
	rest    map[kind]*burst // of others
	pending map[*burst]bool // with a count that is to be written
	timer   *time.Timer     // runs while there are any
	closed  bool
}

func newSampler(write func(Record)) *sampler {
	s := &sampler{write: write, rest: map[kind]*burst{}, pending: map[*burst]bool{}}
	s.known, _ = simplelru.NewLRU[kind, *burst](kindsKept, nil) // the size is above 0
	s.unknown, _ = simplelru.NewLRU[kind, *burst](kindsKept, nil)
	return s
}

// pass reports whether a record is to be written at once.
func (s *sampler) pass(r Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := kindOf(r)
	b := s.burstOf(k, r)
	if b.over(r.Time) {
		b.since, b.passed = r.Time, 0
	}
	if b.passed < k.allowance() || s.closed {
		b.passed++
		return true
	}
	if b.suppressed > 0 {
		s.total.Add(1)
	}
	b.suppressed++
	b.latest = r
	s.pending[b] = true
	if s.timer == nil {
		s.timer = time.AfterFunc(burstTime, s.flush)
	}
	return false
}

// burstOf finds the burst of a kind. A new one takes the place of that which was seen longest ago, if that is over; if not, it is counted
// among those of all other callers.
func (s *sampler) burstOf(k kind, r Record) *burst {
	table := s.known
	if r.KeyID == "" {
		table = s.unknown
	}
	if b, ok := table.Get(k); ok {
		return b
	}
	b := &burst{since: r.Time}
	if table.Len() < kindsKept {
		table.Add(k, b)
		return b
	}
	if _, oldest, _ := table.GetOldest(); oldest.over(r.Time) {
		table.Add(k, b)
		return b
	}
	k = k.others()
	if s.rest[k] == nil {
		s.rest[k] = b
	}
	return s.rest[k]
}

// flush writes all counts.
func (s *sampler) flush() {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	for _, r := range s.take(time.Now()) {
		s.write(r)
	}
}

// take gives the latest record of each kind with a count, and counts anew. What comes next within burstTime has no allowance.
func (s *sampler) take(now time.Time) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = nil
	var due []Record
	for b := range s.pending {
		b.latest.Suppressed = b.suppressed - 1
		due = append(due, b.latest)
		b.since, b.suppressed, b.latest = now, 0, Record{}
	}
	clear(s.pending)
	slices.SortFunc(due, func(a, b Record) int { return a.Time.Compare(b.Time) })
	return due
}

// close writes all counts. What comes after it is not sampled.
func (s *sampler) close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.flush()
}

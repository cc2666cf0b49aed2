package auth

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// burstTime is how long a kind of refusal must be within its allowance for its burst to be over.
	burstTime = 10 * time.Second
	// burstAllowance is how many of a kind are written in that time.
	burstAllowance = 20
	// kindsKept is how many kinds of callers with a verified token are counted apart, and how many of callers without: made-up callers can't
	// make the others be forgotten.
	kindsKept = 1024
)

// recordKind identifies refusals that are sampled together: those of one caller with one token, for one reason.
type recordKind struct {
	alloc, task string
	uid         uint32
	token       string // jti
	reason      string
}

func kindOf(r Record) recordKind {
	return recordKind{alloc: r.Alloc, task: r.Task, uid: r.UID, token: r.TokenID, reason: r.Reason}
}

// ofOthers returns the kind of all callers that are too many to be counted apart. There are few such kinds.
func (k recordKind) ofOthers() recordKind { return recordKind{reason: k.reason} }

// burst counts the records of a kind.
type burst struct {
	since      time.Time // its beginning, or when its count was written
	passed     int       // since then
	suppressed uint64    // since then
	latest     Record    // of those
}

// over reports whether the kind has been quiet for long enough.
func (b *burst) over(now time.Time) bool {
	age := now.Sub(b.since)
	return b.suppressed == 0 && (age >= burstTime || age < 0)
}

// auditSampler lets the first refusals of each kind pass and counts the others. The latest of those is written with the
// number of the rest: when a burst ends, and every burstTime while it lasts.
type auditSampler struct {
	write func(Record)
	total atomic.Uint64 // left out for good

	flushing sync.Mutex // held while counts are written; never within mu

	mu      sync.Mutex                         // guards the fields below
	known   *simplelru.LRU[recordKind, *burst] // of callers whose token was verified
	unknown *simplelru.LRU[recordKind, *burst]
	rest    map[recordKind]*burst // of others
	pending map[*burst]bool       // with a count that is to be written
	timer   *time.Timer           // runs while there are any
	closed  bool
}

func newAuditSampler(write func(Record)) *auditSampler {
	s := &auditSampler{write: write, rest: map[recordKind]*burst{}, pending: map[*burst]bool{}}
	s.known, _ = simplelru.NewLRU[recordKind, *burst](kindsKept, nil) // the size is above 0
	s.unknown, _ = simplelru.NewLRU[recordKind, *burst](kindsKept, nil)
	return s
}

// pass reports whether a record is to be written at once.
func (s *auditSampler) pass(r Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := kindOf(r)
	b := s.burstOf(k, r)
	if b.over(r.Time) {
		b.since, b.passed = r.Time, 0
	}
	if b.passed < burstAllowance || s.closed {
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

// burstOf returns the burst of a kind. A new one replaces the least recently seen one, if that is over; if not, it is counted among those of
// all other callers.
func (s *auditSampler) burstOf(k recordKind, r Record) *burst {
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
	k = k.ofOthers()
	if s.rest[k] == nil {
		s.rest[k] = b
	}
	return s.rest[k]
}

// flush writes all counts.
func (s *auditSampler) flush() {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	for _, r := range s.drain(time.Now()) {
		s.write(r)
	}
}

// drain returns the latest record of each kind with a count, and begins to count again. What comes next within burstTime has no allowance.
func (s *auditSampler) drain(now time.Time) []Record {
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
func (s *auditSampler) close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.flush()
}

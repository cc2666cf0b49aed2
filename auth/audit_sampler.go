package auth

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"taskapi/internal/peercred"
)

const (
	// A burst of a kind of refusal is over after burstTime within the allowance.
	burstTime = 10 * time.Second
	// burstAllowance is how many refusals of a kind are written in burstTime.
	burstAllowance = 20
	// kindsKept is how many kinds are counted separately, of callers with a verified token and of others each,
	// so that made-up callers can't displace real ones.
	kindsKept = 1024
)

// recordKind identifies refusals that are sampled together: of one caller with one token, for one reason.
type recordKind struct {
	alloc, task string
	uid         uint32
	network     netip.Prefix // of a client of another machine; its port, and half of an IPv6 address, are its own choice
	certificate string
	token       string // jti
	reason      string
}

// burst counts the records of a kind.
type burst struct {
	since      time.Time // its beginning, or when its count was last written
	passed     int       // since then
	suppressed uint64    // since then
	latest     Record    // of the suppressed ones
}

// over reports whether the kind has been quiet for long enough.
func (b *burst) over(now time.Time) bool {
	age := now.Sub(b.since)
	return b.suppressed == 0 && (age >= burstTime || age < 0)
}

// auditSampler lets the first refusals of each kind pass and counts the others. The latest of the others is written
// with their number when a burst ends, and every burstTime while it lasts.
type auditSampler struct {
	write func(Record)
	total atomic.Uint64 // of refusals that are never written

	flushing sync.Mutex // held while counts are written; never within mu

	mu      sync.Mutex                         // guards the fields below
	known   *simplelru.LRU[recordKind, *burst] // of callers whose token was verified
	unknown *simplelru.LRU[recordKind, *burst]
	rest    map[recordKind]*burst // of callers that are not counted separately
	pending map[*burst]bool       // bursts whose count must be written
	timer   *time.Timer           // runs while there are pending ones
	closed  bool
}

func newAuditSampler(write func(Record)) *auditSampler {
	s := &auditSampler{write: write, rest: map[recordKind]*burst{}, pending: map[*burst]bool{}}
	s.known, _ = simplelru.NewLRU[recordKind, *burst](kindsKept, nil) // the size is above 0
	s.unknown, _ = simplelru.NewLRU[recordKind, *burst](kindsKept, nil)
	return s
}

// pass reports whether the record must be written at once.
func (s *auditSampler) pass(r Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := recordKind{
		alloc: r.Alloc, task: r.Task, uid: r.UID, network: peercred.NetworkOf(r.Address), certificate: r.Certificate,
		token: r.TokenID, reason: r.Reason,
	}
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

// burstOf returns the burst of a kind. A new burst replaces the least recently seen one if that is over; if not, the
// kind is counted with all other callers.
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
	k = recordKind{reason: k.reason} // there are few such kinds
	if s.rest[k] == nil {
		s.rest[k] = b
	}
	return s.rest[k]
}

func (s *auditSampler) flush() {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	for _, r := range s.drain(time.Now()) {
		s.write(r)
	}
}

// drain returns the latest record of each kind with a count, and starts counting again. In the next burstTime the kind
// has no allowance.
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

// close writes all counts. Later records are not sampled.
func (s *auditSampler) close() {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.flush()
}

package transport

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// While several sockets are in use, clients and a server that use all processors wait for the kernel's scheduler, for
// tens of milliseconds on a busy machine. A neighbour's request waits with them, much longer than in this process. A
// server that leaves the processors some idle time runs as soon as it wants to. How much idle time that takes depends
// on the machine and on what else runs there, so the pacer measures how late its own timer comes. See make bench,
// neighbours.
const (
	// leastPace is how many requests a second, for each processor, the sockets together may always begin: about a
	// fifteenth of what a processor can do. On two busy processors it keeps a neighbour's p99 below twice its p99 when
	// it is alone.
	leastPace = 1000
	// paceBurst is how many a socket that has been quiet begins at once.
	paceBurst = 64
	// paceFor is how long sockets are paced after two were in use.
	paceFor = 10 * time.Second
	// paceBytes of an answer, or of a frame, count as a request.
	paceBytes = 32 << 10
	// paceRest is the shortest wait.
	paceRest = time.Millisecond
)

// The pace is set every paceWindow. It rises while the timer of each paceTick is in time, and falls when it was late
// more than once; then it stays for paceHold, since each attempt to rise costs the neighbours a window.
const (
	paceTick    = 5 * time.Millisecond
	paceWindow  = 100 * time.Millisecond
	paceLate    = 1250 * time.Microsecond // an idle machine's timers are 0.4 ms late at the 99th percentile
	paceHold    = 30 * time.Second
	paceRises   = 1.25
	paceFalls   = 0.7
	paceHeadway = 2 // how far the pace may be above the demand
)

// pace is how many requests a second the sockets may begin together, and what the next pace is computed from.
type pace struct {
	least, rate float64
	late, begun int       // ticks that came late, and requests that began, in the present window
	since, hold time.Time // the begin of the window; until when the rate does not rise
}

// tick returns the pace after a tick that came so late; at the end of a window, with the next rate.
func (p pace) tick(now time.Time, late time.Duration) pace {
	if late > paceLate {
		p.late++
	}
	took := now.Sub(p.since)
	if took < paceWindow {
		return p
	}
	demand := float64(p.begun) / took.Seconds()
	switch {
	case p.late > 1:
		p.rate, p.hold = paceFalls*min(p.rate, demand), now.Add(paceHold)
	case !now.Before(p.hold):
		p.rate = min(p.rate*paceRises, paceHeadway*demand)
	}
	p.rate = max(p.rate, p.least)
	p.late, p.begun, p.since = 0, 0, now
	return p
}

// pacer keeps busy sockets from slowing down their neighbours: while several sockets are in use, all together begin no
// more requests, and send no more frames, than leave the processors some idle time. A socket below its share never
// waits, and the others get what it does not use. A socket that is in use alone is not paced, and then a request costs
// one load of a pointer.
type pacer struct {
	alone atomic.Pointer[bucket] // of the socket that is in use alone; nil while sockets are paced

	mu       sync.Mutex // guards the fields below, and those of buckets
	pace     pace
	ticks    *time.Timer // nil while nothing is paced
	due      time.Time   // of the next tick
	until    time.Time   // when a socket that is in use is alone again
	latest   *bucket     // to begin a request
	refilled time.Time
	buckets  []*bucket // of sockets that have been in use since sockets are paced
	timer    *time.Timer
}

type bucket struct {
	known  bool            // it is among the pacer's
	tokens float64         // requests that it may begin; below 0 it has begun more
	queue  []chan struct{} // of requests that wait; each is closed when it may begin
}

func newPacer() *pacer {
	least := float64(leastPace * runtime.GOMAXPROCS(0))
	return &pacer{pace: pace{least: least, rate: least}}
}

// begin returns nil when a request of the socket may begin at once, and otherwise what is closed when it may.
func (p *pacer) begin(b *bucket) <-chan struct{} {
	if p.alone.Load() == b {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.paces(b, now) {
		return nil
	}
	p.pace.begun++
	p.refill(now)
	if !b.known {
		b.known, b.tokens = true, paceBurst
		p.buckets = append(p.buckets, b)
	}
	if len(b.queue) == 0 && b.tokens >= 1 {
		b.tokens--
		return nil
	}
	turn := make(chan struct{})
	b.queue = append(b.queue, turn)
	if p.timer == nil {
		p.timer = time.AfterFunc(paceRest, p.grant)
	}
	return turn
}

// paces reports whether sockets are paced at the time of a socket's request.
func (p *pacer) paces(b *bucket, now time.Time) bool {
	if p.latest != nil && p.latest != b {
		p.alone.Store(nil)
		p.until = now.Add(paceFor)
		if p.ticks == nil {
			p.pace.since, p.pace.late, p.pace.begun = now, 0, 0
			p.due = now.Add(paceTick)
			p.ticks = time.AfterFunc(paceTick, p.tick)
		}
	}
	p.latest = b
	if now.Before(p.until) || p.timer != nil { // requests wait
		return true
	}
	for _, other := range p.buckets {
		other.known = false
	}
	p.buckets = nil
	p.alone.Store(b)
	return false
}

// tick notes how late it is called, and is called again while sockets are paced.
func (p *pacer) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.pace = p.pace.tick(now, now.Sub(p.due))
	if !now.Before(p.until) {
		p.ticks = nil
		return
	}
	p.due = now.Add(paceTick)
	p.ticks.Reset(paceTick)
}

// refill shares the requests that may begin. Each socket gets as many, and those that a socket has no use for go to the
// others.
func (p *pacer) refill(now time.Time) {
	since := now.Sub(p.refilled)
	if since >= 0 && since < paceRest {
		return
	}
	p.refilled = now
	amount := p.pace.rate * min(max(since, 0), time.Second).Seconds()
	slices.SortFunc(p.buckets, func(a, b *bucket) int { return cmp.Compare(b.tokens, a.tokens) })
	for i, b := range p.buckets { // the fullest first
		part := min(amount/float64(len(p.buckets)-i), paceBurst-b.tokens)
		b.tokens += part
		amount -= part
	}
}

// grant lets requests begin whose turn has come, and is called again while others wait.
func (p *pacer) grant() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	p.refill(time.Now())
	waiting := false
	for _, b := range p.buckets {
		for len(b.queue) > 0 && b.tokens >= 1 {
			b.tokens--
			close(b.queue[0])
			b.queue = b.queue[1:]
		}
		waiting = waiting || len(b.queue) > 0
	}
	if waiting {
		p.timer = time.AfterFunc(paceRest, p.grant)
	}
}

// answered counts an answer of that many bytes: a long one is as much work as several requests.
func (p *pacer) answered(b *bucket, bytes int) {
	if bytes < paceBytes || p.alone.Load() == b {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b.tokens -= float64(bytes / paceBytes)
}

// forget removes a bucket. No request of it waits any more.
func (p *pacer) forget(b *bucket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buckets = slices.DeleteFunc(p.buckets, func(other *bucket) bool { return other == b })
	if p.latest == b {
		p.latest = nil
		p.alone.Store(nil)
	}
}

package handlers

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// While several sockets are in use, clients and server that take all they can get are made to wait by the kernel's scheduler, for tens of
// milliseconds where others are at work, and a neighbour's request waits with them; what it waits for in this process is nothing beside
// that. A server that leaves the processors some rest runs as soon as it wants to. How much rest that takes depends on the machine and on
// what else runs there, so the pacer looks at how late its own timer comes. See make bench, neighbours.
const (
	// leastPace is how many requests a second, for each processor, the sockets together begin in any case: about a fifteenth of what a
	// processor can do. On two busy ones it keeps a neighbour's p99 below twice what it is alone.
	leastPace = 1000
	// paceBurst is how many a socket begins at once that has been quiet.
	paceBurst = 64
	// paceFor is how long sockets are paced after two were in use.
	paceFor = 10 * time.Second
	// paceBytes of an answer count as a request.
	paceBytes = 32 << 10
	// paceRest is the shortest wait.
	paceRest = time.Millisecond
)

// The pace is looked at every paceWindow. It rises while the timer that comes each paceTick is in time, and falls when it was late more
// than once; then it stays for paceHold, since each try to rise costs the neighbours a window.
const (
	paceTick    = 5 * time.Millisecond
	paceWindow  = 100 * time.Millisecond
	paceLate    = 1250 * time.Microsecond // an idle machine's timers are 0.4 ms late at the 99th percentile
	paceHold    = 30 * time.Second
	paceRises   = 1.25
	paceFalls   = 0.7
	paceHeadway = 2 // how far the pace may be above what is asked for
)

// pace is how many requests a second the sockets may begin together, and what the next one is derived from.
type pace struct {
	least, rate float64
	late, begun int       // ticks that came late, and requests that began, in the present window
	since, hold time.Time // the begin of the window; until when the rate does not rise
}

// tick notes how late a tick came, and at the end of a window sets the next rate.
func (p pace) tick(now time.Time, late time.Duration) pace {
	if late > paceLate {
		p.late++
	}
	took := now.Sub(p.since)
	if took < paceWindow {
		return p
	}
	asked := float64(p.begun) / took.Seconds()
	switch {
	case p.late > 1:
		p.rate, p.hold = paceFalls*min(p.rate, asked), now.Add(paceHold)
	case !now.Before(p.hold):
		p.rate = min(p.rate*paceRises, paceHeadway*asked)
	}
	p.rate = max(p.rate, p.least)
	p.late, p.begun, p.since = 0, 0, now
	return p
}

// pacer keeps busy sockets from slowing down their neighbours: while several sockets are in use, all together begin no more requests than
// leave the processors some rest. Who asks for less than its share is never made to wait, and leaves what it does not use to the others.
// A socket that is in use alone is not paced, and then a request costs one look at a pointer.
type pacer struct {
	alone atomic.Pointer[lane] // who is in use alone; nil while sockets are paced

	mu       sync.Mutex // guards the fields below, and those of lanes
	pace     pace
	ticks    *time.Timer // nil while nothing is paced
	due      time.Time   // of the next tick
	until    time.Time   // when a socket that is in use is alone again
	latest   *lane       // to begin a request
	refilled time.Time
	lanes    []*lane // that have been in use since sockets are paced
	timer    *time.Timer
}

// lane is what the pacer knows of a socket.
type lane struct {
	known   bool            // it is among the pacer's
	balance float64         // requests that it may begin; below 0 it has begun more
	queue   []chan struct{} // of requests that wait; each is closed when it may begin
}

func newPacer() *pacer {
	least := float64(leastPace * runtime.GOMAXPROCS(0))
	return &pacer{pace: pace{least: least, rate: least}}
}

// begin returns nil when a request of the lane may begin at once, and otherwise what is closed when it may.
func (p *pacer) begin(l *lane) <-chan struct{} {
	if p.alone.Load() == l {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.paces(l, now) {
		return nil
	}
	p.pace.begun++
	p.refill(now)
	if !l.known {
		l.known, l.balance = true, paceBurst
		p.lanes = append(p.lanes, l)
	}
	if len(l.queue) == 0 && l.balance >= 1 {
		l.balance--
		return nil
	}
	turn := make(chan struct{})
	l.queue = append(l.queue, turn)
	if p.timer == nil {
		p.timer = time.AfterFunc(paceRest, p.grant)
	}
	return turn
}

// paces reports whether sockets are paced at the time of a lane's request.
func (p *pacer) paces(l *lane, now time.Time) bool {
	if p.latest != nil && p.latest != l {
		p.alone.Store(nil)
		p.until = now.Add(paceFor)
		if p.ticks == nil {
			p.pace.since, p.pace.late, p.pace.begun = now, 0, 0
			p.due = now.Add(paceTick)
			p.ticks = time.AfterFunc(paceTick, p.tick)
		}
	}
	p.latest = l
	if now.Before(p.until) || p.timer != nil { // somebody waits
		return true
	}
	for _, other := range p.lanes {
		other.known = false
	}
	p.lanes = nil
	p.alone.Store(l)
	return false
}

// tick looks at how late it comes, and comes again while sockets are paced.
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

// refill shares what may have begun since: each lane gets as much, and what one has no use for goes to the others.
func (p *pacer) refill(now time.Time) {
	since := now.Sub(p.refilled)
	if since >= 0 && since < paceRest {
		return
	}
	p.refilled = now
	amount := p.pace.rate * min(max(since, 0), time.Second).Seconds()
	slices.SortFunc(p.lanes, func(a, b *lane) int { return cmp.Compare(b.balance, a.balance) })
	for i, l := range p.lanes { // who lacks least comes first
		part := min(amount/float64(len(p.lanes)-i), paceBurst-l.balance)
		l.balance += part
		amount -= part
	}
}

// grant lets those begin whose turn has come, and comes again while others wait.
func (p *pacer) grant() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	p.refill(time.Now())
	waiting := false
	for _, l := range p.lanes {
		for len(l.queue) > 0 && l.balance >= 1 {
			l.balance--
			close(l.queue[0])
			l.queue = l.queue[1:]
		}
		waiting = waiting || len(l.queue) > 0
	}
	if waiting {
		p.timer = time.AfterFunc(paceRest, p.grant)
	}
}

// answered counts an answer of so many bytes: a long one is as much work as several requests.
func (p *pacer) answered(l *lane, bytes int) {
	if bytes < paceBytes || p.alone.Load() == l {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l.balance -= float64(bytes / paceBytes)
}

// forget ends a lane, of which no request waits any more.
func (p *pacer) forget(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes = slices.DeleteFunc(p.lanes, func(other *lane) bool { return other == l })
	if p.latest == l {
		p.latest = nil
		p.alone.Store(nil)
	}
}

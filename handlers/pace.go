package handlers

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// paceOfProcessor is how many requests a second, for each processor, the sockets together begin while several are in use: about a
	// fifteenth of what a processor can do. Clients and server that take all they can get are made to wait by the kernel's scheduler, for
	// tens of milliseconds where others are at work, and a neighbour's request waits with them; what it waits for in this process is
	// nothing beside that. A server that takes a part runs as soon as it wants to. See make bench, neighbours.
	paceOfProcessor = 1000
	// paceBurst is how many a socket begins at once that has been quiet.
	paceBurst = 64
	// paceFor is how long sockets are paced after two were in use.
	paceFor = 10 * time.Second
	// paceBytes of an answer count as a request.
	paceBytes = 32 << 10
	// paceRest is the shortest wait.
	paceRest = time.Millisecond
)

// pacer keeps busy sockets from slowing down their neighbours: while several sockets are in use, all together begin no more requests than
// leave the processors some rest. Who asks for less than its share is never made to wait, and leaves what it does not use to the others.
// A socket that is in use alone is not paced, and then a request costs one look at a pointer.
type pacer struct {
	rate float64 // requests a second

	alone atomic.Pointer[lane] // who is in use alone; nil while sockets are paced

	mu       sync.Mutex // guards the fields below, and those of lanes
	until    time.Time  // when a socket that is in use is alone again
	latest   *lane      // to begin a request
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

func newPacer() *pacer { return &pacer{rate: float64(paceOfProcessor * runtime.GOMAXPROCS(0))} }

// begin is nil when a request of the lane may begin at once; otherwise it is closed when it may.
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

// refill shares what may have begun since: each lane gets as much, and what one has no use for goes to the others.
func (p *pacer) refill(now time.Time) {
	since := now.Sub(p.refilled)
	if since >= 0 && since < paceRest {
		return
	}
	p.refilled = now
	amount := p.rate * min(max(since, 0), time.Second).Seconds()
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

// begin waits until a request on the connection may be read and answered, unless it has begun. When the server stops it waits no longer.
func (c *connection) begin() {
	if c.begun {
		return
	}
	c.begun = true
	turn := c.site.pacer.begin(&c.site.lane)
	if turn == nil {
		return
	}
	c.enter(serving) // it is not the client's time that passes
	select {
	case <-turn:
	case <-c.site.draining.Done():
	}
}

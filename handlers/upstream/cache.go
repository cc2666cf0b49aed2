package upstream

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/internal/wake"
)

// The bounds of the cache of one socket.
const (
	// mostResources is how many resources have a query at the agent. One more takes the place of a resource for which
	// nobody waits. If all are waited for, the read is passed on.
	mostResources = 64
	// mostBytes is how long all answers may be together, and longest how long one may be. A read whose answer is longer
	// is passed on.
	mostBytes = 16 << 20
	longest   = 4 << 20
	// longFor is how long a resource whose answer has no place is passed on before it is tried again.
	longFor = time.Minute
	// unasked is how long a resource is followed for which nobody asks.
	unasked = 15 * time.Second
	// staleFor is how old an answer may be while the agent is away.
	staleFor = 30 * time.Second
	// queryRetry is the time between two queries of a resource while the agent is away.
	queryRetry = 500 * time.Millisecond
	// leastBetween is the least time between two queries of a resource that changes all the time.
	leastBetween = 20 * time.Millisecond
	// trusted is how long an answer counts as the latest one: a query takes no longer. The limit is reached only after
	// this process was stopped (by SIGSTOP, say) and continued.
	trusted = queryWait + querySlack + leastUnchanged
	// leastUnchanged is the least time between two queries if the agent answers the first without a change.
	leastUnchanged = time.Second
)

// errPassOn means that the cache has no place for an answer.
var errPassOn = errors.New("the read is passed on")

// awayError means that the agent can't be reached, or does not answer in time.
type awayError struct{ error }

// value is an answer of the agent. It is never changed.
type value struct {
	status  int
	header  http.Header // what is passed on of it
	body    []byte
	index   uint64
	contact uint64 // X-Nomad-LastContact, in milliseconds
}

// ofCache identifies a resource and the token that has to earn it.
type ofCache struct {
	resource
	token string
}

// cache has the resources that the callers of one socket read.
type cache struct {
	agent *Agent
	epoch *atomic.Uint64 // grows with each change that was made through the gateway
	own   atomic.Uint64  // grows with each other change of this socket after which its reads need newer answers
	ctx   context.Context
	tasks *sync.WaitGroup // the queries

	coming atomic.Int64 // bytes of answers that are not whole yet

	mu      sync.Mutex // guards the fields below, and those of the entries
	entries map[ofCache]*entry
	bytes   int
	long    map[resource]time.Time // resources whose answers have no place, and until when they are passed on at once
}

func newCache(ctx context.Context, agent *Agent, epoch *atomic.Uint64, tasks *sync.WaitGroup) *cache {
	return &cache{agent: agent, epoch: epoch, ctx: ctx, tasks: tasks, entries: map[ofCache]*entry{},
		long: map[resource]time.Time{}}
}

// now returns the present epoch of the socket, which grows when older answers are no longer good enough.
func (c *cache) now() uint64 { return c.epoch.Load() + c.own.Load() }

// entry follows one resource with one token.
type entry struct {
	of    ofCache
	cache *cache

	asked    time.Time // when a caller has read it last
	now      state
	changed  chan struct{} // closed with each new state
	waiting  int           // callers
	querying uint64        // the epoch when the present query began
	hurry    func()        // ends the present query; nil for none
	blocks   bool          // the present query waits for a change
}

// state is what is known of a resource.
type state struct {
	value     *value    // the latest answer; nil for none yet
	epoch     uint64    // when the query of it began
	confirmed time.Time // when the agent has answered last
	backward  uint64    // how often the index has become less

	away  bool   // the latest query has failed
	tried uint64 // the epoch when it began

	over error  // the entry's end; nil while it goes on
	last *value // with it: an answer that is not kept, such as a refusal
}

// read returns the answer for a caller. It waits for a change when the read has an index, at most until ctx ends, and
// then returns the answer as it stands. age is how long the agent has been away. Errors: errPassOn, awayError, ctx's
// when there is no answer.
func (c *cache) read(ctx context.Context, of ofCache, q read) (v *value, age time.Duration, err error) {
	want := c.now()
	for {
		s, err := c.await(ctx, of, want, q)
		switch {
		case s.over != nil && s.tried < want && ctx.Err() == nil && !errors.Is(s.over, errPassOn):
			continue // it says nothing about the time after the change
		case s.over != nil && s.last != nil:
			return s.last, 0, nil
		case s.over != nil:
			return nil, 0, s.over
		case err != nil && s.value == nil:
			return nil, 0, err
		}
		if age = time.Since(s.confirmed); age > staleFor {
			return nil, 0, awayError{errors.New("the agent is away")}
		}
		if !s.away && age <= trusted {
			age = 0
		}
		return s.value, age, nil
	}
}

// await returns the state in which the read can be answered. Errors: ctx's, with the state as it stands.
func (c *cache) await(ctx context.Context, of ofCache, want uint64, q read) (state, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.enter(of)
	if e == nil {
		return state{over: errPassOn}, nil
	}
	e.waiting++
	defer func() { e.waiting-- }()
	backward := e.now.backward
	for ctx.Err() == nil {
		s := &e.now
		fresh := s.value != nil && s.epoch >= want
		if s.over != nil || s.away && s.value != nil && s.tried >= want && q.after == 0 ||
			fresh && (s.value.index > q.after || q.after == 0 || s.backward != backward) {
			return *s, nil
		}
		if !fresh && !s.away && e.querying < want && e.blocks {
			e.hurry() // it began before the change
			e.blocks = false
		}
		changed := e.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	return e.now, ctx.Err()
}

// enter returns the entry of a resource, which is followed from now on, or nil when there is no place for it. c.mu is
// held.
func (c *cache) enter(of ofCache) *entry {
	e, now := c.entries[of], time.Now()
	if e == nil {
		if now.Before(c.long[of.resource]) || c.ctx.Err() != nil || len(c.entries) >= mostResources && !c.evict() {
			return nil
		}
		e = &entry{of: of, cache: c, changed: make(chan struct{})}
		c.entries[of] = e
		c.tasks.Go(e.run)
	}
	e.asked = now
	return e
}

// evict ends the entry that nobody waits for and that was read the longest time ago. c.mu is held.
func (c *cache) evict() bool {
	var oldest *entry
	for _, e := range c.entries {
		if e.waiting == 0 && (oldest == nil || e.asked.Before(oldest.asked)) {
			oldest = e
		}
	}
	if oldest == nil {
		return false
	}
	oldest.end(errPassOn, nil)
	return true
}

// run queries the agent until the entry ends.
func (e *entry) run() {
	for index := uint64(0); ; {
		began := time.Now()
		next, rest := e.once(index)
		if rest == 0 {
			return
		}
		index = next
		_ = wake.Sleep(e.cache.ctx, rest-time.Since(began)) // once sees that ctx has ended
	}
}

// once sends one query and takes its answer over. It returns from which index the next one waits and the time between
// both; 0 at the entry's end.
func (e *entry) once(index uint64) (next uint64, rest time.Duration) {
	c := e.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.waiting == 0 && time.Since(e.asked) > unasked {
		e.end(errPassOn, nil)
	}
	if e.now.over != nil {
		return 0, 0
	}
	if e.querying = c.now(); e.querying > e.now.epoch {
		index = 0
	}
	limit := patience(index)
	if e.now.away {
		limit = min(limit, max(time.Until(e.now.confirmed.Add(staleFor)), time.Millisecond))
	}
	query, stop := context.WithTimeout(c.ctx, limit)
	defer stop()
	hurried := false
	e.hurry, e.blocks = func() { hurried = true; stop() }, index > 0
	c.mu.Unlock()
	began := time.Now()
	v, err := c.ask(query, e.of, index)
	if err == nil && time.Since(began) > limit { // this process was stopped: the answer may have waited for it, too
		err = context.DeadlineExceeded
	}
	c.mu.Lock()
	e.hurry, e.blocks = nil, false
	s := e.now
	s.tried = e.querying
	switch {
	case s.over != nil:
		return 0, 0
	case c.ctx.Err() != nil:
		e.end(awayError{errors.New("the gateway stops")}, nil)
		return 0, 0
	case hurried && err != nil:
		return 0, leastBetween
	case err == nil && v.kept() && c.bytes+len(v.body)-s.size() > mostBytes:
		err = errPassOn
	case err == nil && v.kept():
		c.bytes += len(v.body) - s.size()
		if s.value != nil && v.index < s.value.index {
			s.backward++
		}
		s.value, s.epoch, s.confirmed, s.away = v, e.querying, time.Now(), false
		e.put(s)
		if v.index == index { // it did not wait, or long enough
			return v.index, leastUnchanged
		}
		return v.index, leastBetween
	case err == nil && (s.value == nil || !v.ofTrouble()):
		e.end(errRefused, v)
		return 0, 0
	case err == nil:
		err = errors.New("the agent is in trouble")
	}
	switch {
	case errors.Is(err, errPassOn):
		if len(c.long) >= mostResources {
			clear(c.long)
		}
		c.long[e.of.resource] = time.Now().Add(longFor)
		e.end(errPassOn, nil)
		return 0, 0
	case s.value == nil || time.Since(s.confirmed) >= staleFor:
		e.end(awayError{err}, nil)
		return 0, 0
	}
	s.away = true
	e.put(s)
	return 0, queryRetry
}

// errRefused is the end of an entry whose answer is not kept.
var errRefused = errors.New("the agent refused")

// end makes the state the last one, ends the query, and takes the entry out of the cache. c.mu is held.
func (e *entry) end(why error, last *value) {
	s := e.now
	if s.over != nil {
		return
	}
	delete(e.cache.entries, e.of)
	e.cache.bytes -= s.size()
	s.over, s.last, s.tried = why, last, e.querying
	e.put(s)
	if e.hurry != nil {
		e.hurry()
	}
}

// put makes s the state. c.mu is held.
func (e *entry) put(s state) {
	e.now = s
	close(e.changed)
	e.changed = make(chan struct{})
}

// size returns how many bytes of the cache the state takes.
func (s *state) size() int {
	if s.value == nil {
		return 0
	}
	return len(s.value.body)
}

// kept reports whether the answer is one that a query can wait on: there is an object, or there is none yet.
func (v *value) kept() bool {
	return v.index > 0 && (v.status == http.StatusOK || v.status == http.StatusNotFound)
}

// ofTrouble reports whether the answer says more about the cluster than about the request.
func (v *value) ofTrouble() bool {
	return v.status >= http.StatusInternalServerError || v.status == http.StatusTooManyRequests
}

// ask sends a query and returns the answer. Errors: errPassOn for one that is too long, and the connection's.
func (c *cache) ask(ctx context.Context, of ofCache, index uint64) (*value, error) {
	r, err := c.agent.Address.request(ctx, of.resource, index, of.token)
	if err != nil {
		return nil, err
	}
	response, err := c.agent.queries.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if err := checkStatus(response.StatusCode); err != nil {
		return nil, err
	}
	body, err := c.whole(response)
	if err != nil {
		return nil, err
	}
	v := &value{status: response.StatusCode, header: passedHeader(response.Header), body: body}
	v.index, _ = strconv.ParseUint(response.Header.Get(indexHeader), 10, 64) // 0: nobody can wait on it
	v.contact, _ = strconv.ParseUint(response.Header.Get(contactHeader), 10, 64)
	return v, nil
}

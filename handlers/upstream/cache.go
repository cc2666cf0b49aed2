package upstream

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of the cache of one socket.
const (
	// mostResources is how many resources have a query at the agent. A read of one more takes the place of one for which
	// nobody waits, or is passed on.
	mostResources = 64
	// mostBytes is how long all answers may be together, and longest how long one may be. Reads of a longer one are passed
	// on.
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
	// trusted is how long an answer counts as the latest one: a query takes no longer. It has no use while this process
	// runs, but after the process was stopped and goes on.
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
type ofCache struct{ uri, token string }

// cache has the resources that the callers of one socket read.
type cache struct {
	agent *Agent
	epoch *atomic.Uint64 // grows with each change through the gateway
	ctx   context.Context
	tasks *sync.WaitGroup // the queries

	mu      sync.Mutex // guards the fields below, before an entry's own
	entries map[ofCache]*entry
	bytes   int
	coming  atomic.Int64         // bytes of answers that are not whole yet
	long    map[string]time.Time // resources whose answers have no place, and until when they are passed on at once
}

func newCache(ctx context.Context, agent *Agent, epoch *atomic.Uint64, tasks *sync.WaitGroup) *cache {
	return &cache{agent: agent, epoch: epoch, ctx: ctx, tasks: tasks, entries: map[ofCache]*entry{},
		long: map[string]time.Time{}}
}

// entry follows one resource with one token.
type entry struct {
	of    ofCache
	cache *cache
	asked atomic.Int64 // when a caller has read it last, in nanoseconds since 1970

	mu       sync.Mutex // guards the fields below
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
	want := c.epoch.Load()
	for {
		e := c.enter(of)
		if e == nil {
			return nil, 0, errPassOn
		}
		s, err := e.await(ctx, want, q)
		e.leave()
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

// enter returns the entry of a resource, with the caller counted, and follows it if nobody does yet. It returns nil
// when there is no place for it.
func (c *cache) enter(of ofCache) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[of]
	if e == nil {
		if time.Now().Before(c.long[of.uri]) {
			return nil
		}
		if len(c.entries) >= mostResources && !c.evict() || c.ctx.Err() != nil {
			return nil
		}
		e = &entry{of: of, cache: c, changed: make(chan struct{})}
		c.entries[of] = e
		c.tasks.Go(func() { e.run(c.ctx) })
	}
	e.asked.Store(time.Now().UnixNano())
	e.mu.Lock()
	e.waiting++
	e.mu.Unlock()
	return e
}

func (e *entry) leave() {
	e.mu.Lock()
	e.waiting--
	e.mu.Unlock()
}

// evict ends the entry that nobody waits for and that was read the longest time ago. c.mu is held.
func (c *cache) evict() bool {
	var oldest *entry
	for _, e := range c.entries {
		e.mu.Lock()
		idle := e.waiting == 0
		e.mu.Unlock()
		if idle && (oldest == nil || e.asked.Load() < oldest.asked.Load()) {
			oldest = e
		}
	}
	if oldest == nil {
		return false
	}
	c.drop(oldest)
	oldest.mu.Lock()
	defer oldest.mu.Unlock()
	oldest.end(errPassOn, nil)
	return true
}

// drop removes an entry from the cache, if it still is there. c.mu is held.
func (c *cache) drop(e *entry) {
	if c.entries[e.of] == e {
		delete(c.entries, e.of)
		c.bytes -= e.size()
	}
}

func (e *entry) size() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.now.value == nil {
		return 0
	}
	return len(e.now.value.body)
}

// end makes the state the last one, and ends the query. e.mu is held.
func (e *entry) end(why error, last *value) {
	if e.now.over != nil {
		return
	}
	e.now.over, e.now.last, e.now.tried = why, last, e.querying
	close(e.changed)
	e.changed = make(chan struct{})
	if e.hurry != nil {
		e.hurry()
	}
}

// await returns the state in which the read can be answered. Errors: ctx's, with the state as it stands.
func (e *entry) await(ctx context.Context, want uint64, q read) (state, error) {
	var backward uint64
	for first := true; ; first = false {
		e.mu.Lock()
		s, changed := e.now, e.changed
		if first {
			backward = s.backward
		}
		fresh := s.value != nil && s.epoch >= want
		if !fresh && !s.away && s.over == nil && e.querying < want && e.blocks {
			e.hurry() // it began before the change
			e.blocks = false
		}
		e.mu.Unlock()
		switch {
		case s.over != nil: // why, is the state
			return s, nil //nolint:nilerr // the caller answers with the state
		case s.away && s.value != nil && s.tried >= want && q.after == 0:
			return s, nil
		case fresh && (s.value.index > q.after || q.after == 0 || s.backward != backward):
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// run follows the resource until nobody asks for it.
func (e *entry) run(ctx context.Context) {
	var index uint64
	for {
		began := time.Now()
		again, next := e.once(ctx, index)
		if !again {
			break
		}
		rest := leastBetween
		switch {
		case e.failing():
			rest = queryRetry
		case next == index && next > 0: // it did not wait, or long enough
			rest = leastUnchanged
		}
		index = next
		if rest -= time.Since(began); rest > 0 {
			pause(ctx, rest)
		}
	}
	e.cache.mu.Lock()
	defer e.cache.mu.Unlock()
	e.cache.drop(e)
}

func (e *entry) failing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now.away
}

// once sends one query and takes its answer over. It reports whether another follows, and from which index.
func (e *entry) once(ctx context.Context, index uint64) (again bool, next uint64) {
	c := e.cache
	limit := patience(index)
	c.mu.Lock()
	e.mu.Lock()
	idle := e.waiting == 0 && time.Since(time.Unix(0, e.asked.Load())) > unasked
	if idle || e.now.over != nil {
		e.end(errPassOn, nil) // nobody waits for it
		e.mu.Unlock()
		c.drop(e) // under the lock with which callers enter, so that none enters an entry that ends
		c.mu.Unlock()
		return false, 0
	}
	if e.now.away {
		limit = min(limit, max(time.Until(e.now.confirmed.Add(staleFor)), time.Millisecond))
	}
	e.querying = c.epoch.Load()
	if e.querying > e.now.epoch {
		index = 0
	}
	query, stop := context.WithTimeout(ctx, limit)
	defer stop()
	hurried := false
	e.hurry, e.blocks = func() { hurried = true; stop() }, index > 0
	e.mu.Unlock()
	c.mu.Unlock()

	began := time.Now()
	v, err := c.ask(query, e.of, index)
	if err == nil && time.Since(began) > limit { // this process was stopped: the answer may have waited for it, too
		err = context.DeadlineExceeded
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hurry, e.blocks = nil, false
	s := e.now
	s.tried = e.querying
	switch {
	case s.over != nil:
		return false, 0
	case ctx.Err() != nil:
		e.end(awayError{errors.New("the gateway stops")}, nil)
		return false, 0
	case hurried && err != nil:
		return true, 0
	case errors.Is(err, errPassOn):
		e.endUncached(errPassOn, nil)
		return false, 0
	case err == nil && v.kept():
		had := 0
		if s.value != nil {
			had = len(s.value.body)
			if v.index < s.value.index {
				s.backward++
			}
		}
		if c.bytes+len(v.body)-had > mostBytes {
			e.endUncached(errPassOn, nil)
			return false, 0
		}
		c.bytes += len(v.body) - had
		s.value, s.epoch, s.confirmed, s.away = v, e.querying, time.Now(), false
		e.put(s)
		return true, v.index
	case err == nil && (s.value == nil || !v.ofTrouble()):
		e.endUncached(errRefused, v)
		return false, 0
	case s.value == nil || time.Since(s.confirmed) >= staleFor:
		if err == nil {
			err = errors.New("the agent is in trouble")
		}
		e.endUncached(awayError{err}, nil)
		return false, 0
	}
	s.away = true
	e.put(s)
	return true, 0
}

// errRefused is the end of an entry whose answer is not kept.
var errRefused = errors.New("the agent refused")

// endUncached ends the entry, and takes it out of the cache in the same moment. Both locks are held.
func (e *entry) endUncached(why error, last *value) {
	c := e.cache
	if errors.Is(why, errPassOn) {
		if len(c.long) >= mostResources {
			clear(c.long)
		}
		c.long[e.of.uri] = time.Now().Add(longFor)
	}
	if c.entries[e.of] == e {
		delete(c.entries, e.of)
		if e.now.value != nil {
			c.bytes -= len(e.now.value.body)
		}
	}
	e.end(why, last)
}

// put makes s the state. e.mu is held.
func (e *entry) put(s state) {
	e.now = s
	close(e.changed)
	e.changed = make(chan struct{})
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
	r, err := c.agent.Address.request(ctx, http.MethodGet, of.uri+blocking(of.uri, index), of.token)
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
	v.index, _ = strconv.ParseUint(response.Header.Get("X-Nomad-Index"), 10, 64) // 0: nobody can wait on it
	v.contact, _ = strconv.ParseUint(response.Header.Get("X-Nomad-LastContact"), 10, 64)
	return v, nil
}

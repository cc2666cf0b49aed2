package auth

import (
	"cmp"
	"time"

	"taskapi/auth/limitset"
	"taskapi/ratelimit"
)

// Limits bound what bad tokens may cost. A zero field takes its default.
type Limits struct {
	// Caller is how many failed look-ups the users of one socket may have together, which are one task, or the operator: a task may run
	// as several users. Default: 10 a second, burst 20. A burst of less than a second's worth makes the average rate lower, since
	// refusals last whole seconds.
	Caller ratelimit.Rate
	// Global is how many all callers may have. Default: 200 a second, burst 200.
	Global ratelimit.Rate
	// Refusals is how many refusals of any kind a caller gets at once; those beyond are delayed, on every connection of its
	// own. Default: 50 a second, burst 100, which only a caller that sends bad requests in a loop reaches.
	Refusals ratelimit.Rate
	// RefusalDelay is how long a refusal is delayed. Default: 250 ms: less than half of the shortest Retry-After, and long enough that
	// a flood over ten connections costs less than one good caller.
	RefusalDelay time.Duration
	// Requests is how many requests with a good token a task may send on its socket; the operator has no limit. Default: none.
	Requests ratelimit.Rate
	// MaxDelayed is how many refusals are delayed at a time; those beyond go out at once. Default: 512.
	MaxDelayed int
}

const (
	// maxCallers is how many sockets are counted apart, more than an allocation has tasks.
	maxCallers = 1024
	// retryAfterUnit is that of HTTP's header.
	retryAfterUnit = time.Second
)

// limits enforces Limits.
type limits struct {
	lookups  *ratelimit.Limiter[Owner]
	refusals *ratelimit.Limiter[Owner] // of each caller, not of all together
	requests *ratelimit.Limiter[Owner] // the same; nil for no limit
	tarpit   *ratelimit.Tarpit
}

func newLimits(c Limits) (*limits, error) {
	c.setDefaults()
	lookups, err := ratelimit.New[Owner](ratelimit.Config{Key: c.Caller, Global: c.Global, MaxKeys: maxCallers, RetryAfterUnit: retryAfterUnit})
	if err != nil {
		return nil, err
	}
	refusals, err := ratelimit.New[Owner](ratelimit.Config{Key: c.Refusals, Global: limitset.Off, MaxKeys: maxCallers})
	if err != nil {
		return nil, err
	}
	tarpit, err := ratelimit.NewTarpit(c.MaxDelayed, c.RefusalDelay)
	if err != nil {
		return nil, err
	}
	l := &limits{lookups: lookups, refusals: refusals, tarpit: tarpit}
	if c.Requests != limitset.Off {
		l.requests, err = ratelimit.New[Owner](ratelimit.Config{
			Key: c.Requests, Global: limitset.Off, MaxKeys: maxCallers, RetryAfterUnit: retryAfterUnit,
		})
	}
	return l, err
}

func (c *Limits) setDefaults() {
	standard := limitset.Default()
	c.Caller = cmp.Or(c.Caller, standard.FailedLookups)
	c.Global = cmp.Or(c.Global, standard.AllFailedLookups)
	c.Refusals = cmp.Or(c.Refusals, standard.Refusals)
	c.Requests = cmp.Or(c.Requests, standard.Requests)
	c.RefusalDelay = cmp.Or(c.RefusalDelay, 250*time.Millisecond)
	c.MaxDelayed = cmp.Or(c.MaxDelayed, 512)
}

// limitReason returns which limit refused.
func limitReason(d ratelimit.Decision) Reason {
	if d.Scope == ratelimit.ScopeGlobal {
		return GlobalLimited
	}
	return CallerLimited
}

// allowRequest counts a request of a known caller, and reports whether it is not one too many. The operator's never are.
func (l *limits) allowRequest(who Owner, now time.Time) bool {
	return l.requests == nil || who.Task == "" || l.requests.Allow(now, who).OK
}

// countFailure counts a failed look-up, and returns its verdict, or that of the limit.
func (l *limits) countFailure(who Owner, now time.Time, v verdict) verdict {
	if d := l.lookups.Allow(now, who); !d.OK {
		v.why = limitReason(d)
	}
	return v
}

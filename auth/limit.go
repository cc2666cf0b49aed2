package auth

import (
	"cmp"
	"time"

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
	// MaxDelayed is how many refusals are delayed at a time; those beyond go out at once. Default: 512.
	MaxDelayed int
}

const (
	// maxCallers is how many sockets are counted apart, more than an allocation has tasks.
	maxCallers = 1024
	// retryAfterUnit is that of HTTP's header.
	retryAfterUnit = time.Second
)

// unlimited is a rate that nobody reaches: not the refusals of all callers are limited, only those of each.
var unlimited = ratelimit.Rate{PerSecond: 1e9, Burst: 1e9}

// limits enforces Limits.
type limits struct {
	lookups  *ratelimit.Limiter[Owner]
	refusals *ratelimit.Limiter[Owner]
	tarpit   *ratelimit.Tarpit
}

func newLimits(c Limits) (*limits, error) {
	c.setDefaults()
	lookups, err := ratelimit.New[Owner](ratelimit.Config{Key: c.Caller, Global: c.Global, MaxKeys: maxCallers, RetryAfterUnit: retryAfterUnit})
	if err != nil {
		return nil, err
	}
	refusals, err := ratelimit.New[Owner](ratelimit.Config{Key: c.Refusals, Global: unlimited, MaxKeys: maxCallers})
	if err != nil {
		return nil, err
	}
	tarpit, err := ratelimit.NewTarpit(c.MaxDelayed, c.RefusalDelay)
	if err != nil {
		return nil, err
	}
	return &limits{lookups: lookups, refusals: refusals, tarpit: tarpit}, nil
}

func (c *Limits) setDefaults() {
	c.Caller = cmp.Or(c.Caller, ratelimit.Rate{PerSecond: 10, Burst: 20})
	c.Global = cmp.Or(c.Global, ratelimit.Rate{PerSecond: 200, Burst: 200})
	c.Refusals = cmp.Or(c.Refusals, ratelimit.Rate{PerSecond: 50, Burst: 100})
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

// countFailure counts a failed look-up, and returns its verdict, or that of the limit.
func (l *limits) countFailure(who Owner, now time.Time, v verdict) verdict {
	if d := l.lookups.Allow(now, who); !d.OK {
		v.why = limitReason(d)
	}
	return v
}

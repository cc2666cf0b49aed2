package auth

import (
	"time"

	"taskapi/ratelimit"
)

// Limits bound what bad tokens may cost. A zero field takes its default.
type Limits struct {
	// Caller is how many failed look-ups all who use one socket may have, which are one task, or the operator: users are not told apart,
	// since a task may have many. Default: 10 a second, burst 20. A burst of less than a second's worth makes the average rate lower,
	// since refusals last whole seconds.
	Caller ratelimit.Rate
	// Global is how many all callers may have. Default: 200 a second, burst 200.
	Global ratelimit.Rate
	// Refusals is how many refusals of any kind a caller gets at once; those beyond are held back, on every connection of its
	// own. Default: 50 a second, burst 100: nobody feels it who does not send bad requests in a loop.
	Refusals ratelimit.Rate
	// RefusalDelay is how long a refusal is held back. Default: 250 ms: less than half of the shortest Retry-After, and long enough that
	// a flood over ten connections costs less than one good caller.
	RefusalDelay time.Duration
	// MaxDelayed is how many refusals may be held back at a time; those beyond go out at once. Default: 512, as many as there may be
	// connections.
	MaxDelayed int
}

const (
	// callers is how many sockets are told apart. It is more than tasks fit into an allocation.
	callers = 1024
	// unit is what a refusal's length is a multiple of: Retry-After's second, so that it is true as it stands.
	unit = time.Second
)

// enough is a rate that nobody reaches: how many refusals all callers get is not limited, only how many each does.
var enough = ratelimit.Rate{PerSecond: 1e9, Burst: 1e9}

// limits are the limits at work.
type limits struct {
	lookups  *ratelimit.Limiter[Owner]
	refusals *ratelimit.Limiter[Owner]
	holder   *ratelimit.Tarpit
}

func newLimits(c Limits) (*limits, error) {
	c.setDefaults()
	lookups, err := ratelimit.New[Owner](ratelimit.Config{Key: c.Caller, Global: c.Global, MaxKeys: callers, RetryAfterUnit: unit})
	if err != nil {
		return nil, err
	}
	refusals, err := ratelimit.New[Owner](ratelimit.Config{Key: c.Refusals, Global: enough, MaxKeys: callers})
	if err != nil {
		return nil, err
	}
	holder, err := ratelimit.NewTarpit(c.MaxDelayed, c.RefusalDelay)
	if err != nil {
		return nil, err
	}
	return &limits{lookups: lookups, refusals: refusals, holder: holder}, nil
}

func (c *Limits) setDefaults() {
	for _, d := range []struct {
		rate     *ratelimit.Rate
		standard ratelimit.Rate
	}{
		{&c.Caller, ratelimit.Rate{PerSecond: 10, Burst: 20}},
		{&c.Global, ratelimit.Rate{PerSecond: 200, Burst: 200}},
		{&c.Refusals, ratelimit.Rate{PerSecond: 50, Burst: 100}},
	} {
		if *d.rate == (ratelimit.Rate{}) {
			*d.rate = d.standard
		}
	}
	if c.RefusalDelay == 0 {
		c.RefusalDelay = 250 * time.Millisecond
	}
	if c.MaxDelayed == 0 {
		c.MaxDelayed = 512
	}
}

// over is the verdict of a limit that refused.
func over(d ratelimit.Decision) verdict {
	why := CallerLimited
	if d.Scope == ratelimit.ScopeGlobal {
		why = GlobalLimited
	}
	return verdict{why: why}
}

// failed counts a failed look-up that has cost little so far. What it returns is the verdict v, or that of the limit.
func (l *limits) failed(who Owner, now time.Time, v verdict) verdict {
	if d := l.lookups.Allow(now, who); !d.OK {
		limited := over(d)
		limited.from = v.from
		return limited
	}
	return v
}

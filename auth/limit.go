package auth

import (
	"cmp"
	"errors"
	"time"

	"taskapi/auth/limitset"
	"taskapi/ratelimit"
)

// Limits bound what bad tokens may cost. A zero field takes its default.
type Limits struct {
	// Set has the rates: FailedLookups, AllFailedLookups, Refusals and Requests. Those of one socket are for all of its
	// users together, since a task may run as several users. A FailedLookups with a burst of less than a second's worth
	// makes the average rate lower, because refusals last whole seconds.
	limitset.Set
	// RefusalDelay is how long a refusal beyond the rate Refusals is delayed. Default: 250 ms. That is less than half of
	// the shortest Retry-After, and long enough that a flood over ten connections costs less than one good caller.
	RefusalDelay time.Duration
	// MaxDelayed is how many refusals are delayed at a time; the others go out at once. Default: 512.
	MaxDelayed int
}

const (
	// maxCallers is how many callers have a limit of their own, more than an allocation has tasks.
	maxCallers = 1024
	// retryAfterUnit is the unit of HTTP's header.
	retryAfterUnit = time.Second
)

// caller is whose failed look-ups and refusals are counted together: the users of a socket, or the clients of another
// machine with the same certificate. So a client of another machine does not shut out a user of this one.
type caller struct {
	Owner
	certificate string // empty for a process of this machine
}

func callerOf(owner Owner, peer Peer) caller { return caller{owner, peer.Certificate} }

type limits struct {
	lookups  *ratelimit.Limiter[caller]
	refusals *ratelimit.Limiter[caller]
	requests *ratelimit.Limiter[Owner] // per socket only; nil for no limit
	tarpit   *ratelimit.Tarpit
}

func newLimits(c Limits) (*limits, error) {
	standard := limitset.Default()
	c.FailedLookups = cmp.Or(c.FailedLookups, standard.FailedLookups)
	c.AllFailedLookups = cmp.Or(c.AllFailedLookups, standard.AllFailedLookups)
	c.Refusals = cmp.Or(c.Refusals, standard.Refusals)
	c.Requests = cmp.Or(c.Requests, standard.Requests)
	l, errs := &limits{}, [4]error{}
	l.lookups, errs[0] = ratelimit.New[caller](ratelimit.Config{
		Key: c.FailedLookups, Global: c.AllFailedLookups, MaxKeys: maxCallers, RetryAfterUnit: retryAfterUnit,
	})
	l.refusals, errs[1] = ratelimit.New[caller](ratelimit.Config{
		Key: c.Refusals, Global: limitset.Off, MaxKeys: maxCallers,
	})
	l.tarpit, errs[2] = ratelimit.NewTarpit(cmp.Or(c.MaxDelayed, 512), cmp.Or(c.RefusalDelay, 250*time.Millisecond))
	if c.Requests != limitset.Off {
		l.requests, errs[3] = ratelimit.New[Owner](ratelimit.Config{
			Key: c.Requests, Global: limitset.Off, MaxKeys: maxCallers, RetryAfterUnit: retryAfterUnit,
		})
	}
	return l, errors.Join(errs[:]...)
}

// anyUser returns the key of a limit that is the task's, whichever of its users sends the requests.
func (o Owner) anyUser() Owner { return Owner{AllocationID: o.AllocationID, Task: o.Task} }

func limitReason(d ratelimit.Decision) Reason {
	if d.Scope == ratelimit.ScopeGlobal {
		return GlobalLimited
	}
	return CallerLimited
}

// countFailure counts a failed look-up, and returns its verdict, or the limit's if that is exceeded.
func (l *limits) countFailure(who caller, now time.Time, v verdict) verdict {
	if d := l.lookups.Allow(now, who); !d.OK {
		v.why = limitReason(d)
	}
	return v
}

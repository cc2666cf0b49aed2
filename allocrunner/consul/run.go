package consul

import (
	"context"
	"math/rand/v2"
	"time"
)

// When requests are sent. Without a reason it is every syncPeriod, which brings back what somebody has removed.
const (
	syncPeriod  = 30 * time.Second // Nomad's
	firstRetry  = time.Second
	longestWait = 30 * time.Second // between two tries, without the jitter
	leaveTime   = 5 * time.Second  // for what is still to be deregistered when Run ends
	shortestAsk = 500 * time.Millisecond
	longestAsk  = 5 * time.Second // between two looks at the results of checks
)

// Run keeps the agent in step with what is registered until ctx ends, from the first that is registered on. It returns when what was to be
// deregistered is, or after a bounded time, and nothing is sent afterwards. It is called once.
func (p *Provider) Run(ctx context.Context) {
	defer p.leave(ctx)
	failures := 0
	sync := time.NewTimer(time.Hour) // an allocation without services of Consul's never asks for its agent
	sync.Stop()
	defer sync.Stop()
	ask := time.NewTimer(time.Hour)
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			failures = p.sync(ctx, failures)
			sync.Reset(wait(failures, p.period))
		case <-sync.C:
			failures = p.sync(ctx, failures)
			sync.Reset(wait(failures, p.period))
		case <-p.feed:
			if failures == 0 && p.sendScripts(ctx) != nil {
				sync.Reset(0)
			}
			continue // scripts may run more often than the agent is asked
		case <-ask.C:
			if failures == 0 && p.ask(ctx) != nil {
				sync.Reset(0)
			}
		}
		ask.Reset(p.askPeriod())
	}
}

// wait returns how long to wait after so many failures in a row, longer each time, or for the next round after none. What many clients wait
// differs.
func wait(failures int, period time.Duration) time.Duration {
	d := period
	if failures > 0 {
		d = min(firstRetry<<min(failures-1, 10), longestWait)
	}
	return d - time.Duration(rand.Int64N(int64(d)/4)) //nolint:gosec // no secret depends on it
}

// askPeriod returns how long the results of checks may be unknown: shorter than the shortest interval of one that the agent makes.
func (p *Provider) askPeriod() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	period := time.Hour
	for _, s := range p.wanted {
		for _, c := range s.checks {
			if !c.script {
				period = min(period, max(min(c.period/2, longestAsk), shortestAsk))
			}
		}
	}
	return period
}

// sync makes one round, and returns how many in a row have failed.
func (p *Provider) sync(ctx context.Context, failures int) int {
	p.mu.Lock()
	upTo := p.latest
	p.mu.Unlock()
	err := p.once(ctx)
	p.mu.Lock()
	p.settled = upTo // whether or not it has been done: who waits for it has other things to do
	if err != nil {
		p.results = nil
	}
	close(p.round)
	p.round = make(chan struct{})
	p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err == nil && failures > 0:
		p.cfg.Logger.Info("Consul's agent takes the services again", "failures", failures)
	case err != nil && failures == 0:
		p.cfg.Logger.Warn("Consul's agent does not take the services: it is tried again until it does", "error", err)
	case err != nil && failures%10 == 0:
		p.cfg.Logger.Warn("Consul's agent still does not take the services", "failures", failures, "error", err)
	}
	if err == nil {
		return 0
	}
	return failures + 1
}

// leave tries once more to deregister what is to be, and ends the connections.
func (p *Provider) leave(ctx context.Context) {
	p.mu.Lock()
	owed := len(p.gone)
	p.mu.Unlock()
	if owed > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		if err := p.once(ctx); err != nil {
			p.cfg.Logger.Warn("services stay in Consul until another allocation of this data directory removes them", "services", owed, "error", err)
		}
		cancel()
	}
	p.mu.Lock()
	p.ended = true
	close(p.round)
	p.round = make(chan struct{})
	p.mu.Unlock()
	p.client.close()
	p.asking.Lock()
	defer p.asking.Unlock()
	p.asker.close()
}

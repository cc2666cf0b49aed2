package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
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
			p.sync(ctx)
			sync.Reset(wait(p.failures, p.period))
		case <-sync.C:
			p.sync(ctx)
			sync.Reset(wait(p.failures, p.period))
		case <-p.feed:
			if p.answers && p.news(p.sendScripts(ctx)) {
				sync.Reset(0)
			}
			continue // scripts may run more often than the agent is asked
		case <-ask.C:
			if p.answers && p.news(p.ask(ctx)) {
				sync.Reset(0)
			}
		}
		ask.Reset(p.askPeriod())
	}
}

// news reports whether an error says what the last round did not: that the agent is away, or refuses something since.
func (p *Provider) news(err error) bool { return err != nil && (p.failures == 0 || !refused(err)) }

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

// sync makes one round.
func (p *Provider) sync(ctx context.Context) {
	p.mu.Lock()
	upTo := p.latest
	p.mu.Unlock()
	refusals, err := p.once(ctx)
	p.mu.Lock()
	p.settled = upTo // whether or not it has been done: who waits for it has other things to do
	if err != nil {
		p.results = nil
	}
	close(p.round)
	p.round = make(chan struct{})
	p.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	p.answers = err == nil
	p.tell(refusals, err)
}

// quiet is how many rounds that fail alike are one line in the log: an hour's.
const quiet = 120

// tell counts rounds that fail, and logs what is wrong when that changes.
func (p *Provider) tell(refusals, err error) {
	all := errors.Join(refusals, err)
	if all == nil {
		if p.failures > 0 {
			p.cfg.Logger.Info("Consul's agent takes the services again", "failures", p.failures)
		}
		p.failures, p.logged = 0, ""
		return
	}
	p.failures++
	wrong := strings.Map(letters, all.Error())
	if wrong != p.logged || p.failures%quiet == 0 {
		words := "Consul's agent does not take the services: it is tried again until it does"
		if err == nil {
			words = "Consul's agent refuses a part of the services: it is tried again until it takes them"
		}
		p.cfg.Logger.Warn(words, "failures", p.failures, "error", all)
	}
	p.logged = wrong
}

// letters drops digits: two errors that differ by a port or by the time of day are one.
func letters(r rune) rune {
	if '0' <= r && r <= '9' {
		return -1
	}
	return r
}

// leave tries once more to deregister what is to be, and ends the connections.
func (p *Provider) leave(ctx context.Context) {
	p.mu.Lock()
	owed := len(p.gone)
	p.mu.Unlock()
	if owed > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		if refusals, err := p.once(ctx); refusals != nil || err != nil {
			p.cfg.Logger.Warn("services may stay in Consul until another allocation of this data directory removes them", "error", errors.Join(refusals, err))
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

package consul

import (
	"context"
	"errors"
	"strings"
	"time"

	"taskapi/internal/wake"
)

// When requests are sent. A round every syncPeriod, without any other reason, restores what somebody has removed.
const (
	syncPeriod  = 30 * time.Second // Nomad's
	leaveTime   = 5 * time.Second  // to deregister the rest when Run ends
	shortestAsk = 500 * time.Millisecond
	longestAsk  = 5 * time.Second // between two reads of the results of checks
)

// Run keeps the agent's registrations up to date until ctx ends. It starts with the first service that is registered.
// At the end it deregisters the remaining services for a bounded time; it sends nothing after it has returned. It is
// called once.
func (p *Provider) Run(ctx context.Context) {
	defer p.leave(ctx)
	sync := time.NewTimer(time.Hour) // an allocation without services for Consul never connects to the agent
	sync.Stop()
	defer sync.Stop()
	ask := time.NewTimer(time.Hour)
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.feed:
			if p.answers && p.news(p.sendScripts(ctx)) {
				sync.Reset(0)
			}
			continue // scripts may run more often than the agent is asked
		case <-ask.C:
			if p.answers && p.news(p.ask(ctx)) {
				sync.Reset(0)
			}
			ask.Reset(p.askPeriod())
			continue
		case <-p.wake:
		case <-sync.C:
		}
		sync.Reset(p.sync(ctx))
		ask.Reset(p.askPeriod())
	}
}

// news reports whether an error is new since the last round: the agent is away, or refuses something.
func (p *Provider) news(err error) bool {
	return err != nil && (p.retry.Failures == 0 || !refused(err))
}

// askPeriod returns the time between two reads of the results of checks. It is shorter than the shortest interval of a
// check that the agent makes.
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

// sync makes one round, and returns the pause after it.
func (p *Provider) sync(ctx context.Context) time.Duration {
	p.mu.Lock()
	upTo := p.latest
	p.mu.Unlock()
	refusals, err := p.once(ctx)
	p.mu.Lock()
	p.settled = upTo // done or not: the callers have other things to do
	if err != nil {
		p.results = nil
	}
	close(p.round)
	p.round = make(chan struct{})
	p.mu.Unlock()
	if ctx.Err() != nil {
		return 0
	}
	p.answers = err == nil
	return p.tell(refusals, err)
}

// quiet is how many rounds with the same error are one line in the log: an hour's.
const quiet = 120

// tell counts the rounds that fail, logs an error when it changes, and returns the pause until the next round.
func (p *Provider) tell(refusals, err error) time.Duration {
	all := errors.Join(refusals, err)
	if all == nil {
		if p.retry.Failures > 0 {
			p.cfg.Logger.Info("Consul's agent accepts the services again", "failures", p.retry.Failures)
		}
		p.retry.Reset()
		p.logged = ""
		return wake.Jitter(p.period)
	}
	pause := p.retry.Pause()
	// Without digits: two errors that differ by a port or by the time of day are one.
	wrong := strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, all.Error())
	if wrong != p.logged || p.retry.Failures%quiet == 0 {
		words := "Consul's agent does not accept the services; taskapi tries again until it does"
		if err == nil {
			words = "Consul's agent refuses some of the services; taskapi tries again until it accepts them"
		}
		p.cfg.Logger.Warn(words, "failures", p.retry.Failures, "error", all)
	}
	p.logged = wrong
	return pause
}

// leave tries once more to deregister the remaining services, and ends the connections.
func (p *Provider) leave(ctx context.Context) {
	p.mu.Lock()
	owed := len(p.gone)
	p.mu.Unlock()
	if owed > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		if refusals, err := p.once(ctx); refusals != nil || err != nil {
			p.cfg.Logger.Warn("services may stay in Consul until another allocation of this data directory removes them",
				"error", errors.Join(refusals, err))
		}
		cancel()
	}
	p.mu.Lock()
	p.ended = true
	close(p.round)
	p.round = make(chan struct{})
	p.mu.Unlock()
	p.asking.Lock()
	defer p.asking.Unlock()
	p.client.close()
}

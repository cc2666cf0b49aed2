package consul

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	capi "github.com/hashicorp/consul/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/wake"
)

// Name is the value of a job file's provider attribute.
const Name = "consul"

// maxOutput is how much of a script's output is sent, which is what an agent keeps of it.
const maxOutput = 4 << 10

// Config configures a Provider. Settings with an address, AllocID, Owner, Lives and Logger are required.
type Config struct {
	Settings Settings
	Secrets  Secrets

	Namespace, Partition string // of the group's consul block; empty for those of Settings

	AllocID string

	// Owner marks the registrations, so that those of other data directories and programs are never removed. It has at
	// most 64 hexadecimal digits.
	Owner string

	// Lives reports whether another allocation of the owner may have services: it has not ended, or its state is
	// unknown. Services of an ended allocation were left behind by a crash.
	Lives func(allocID string) bool

	Logger *slog.Logger
}

// Owner returns the mark of the registrations of a machine's data directory.
func Owner(node, dataDir string) string {
	sum := sha256.Sum256([]byte(node + "\x00" + dataDir))
	return hex.EncodeToString(sum[:16])
}

// Provider registers the services of one allocation with an agent of Consul. New makes one, which does nothing before
// Run.
type Provider struct {
	cfg    Config
	client agentClient
	asking sync.Mutex // held by Registered

	period time.Duration // between rounds without a reason
	settle time.Duration // how long calls wait for the agent

	wake wake.Signal // there is something to do at once
	feed wake.Signal // there are results of scripts

	mu      sync.Mutex // guards the fields below; never held over a request
	wanted  map[string]*service
	gone    map[string]uint64                 // IDs of services to be deregistered, with the number of the request
	results map[string]interfaces.CheckResult // by check ID, as the agent last had them; nil when unknown
	fed     map[string]interfaces.CheckResult // of scripts, by check ID
	unsent  map[string]bool                   // IDs of checks in fed that the agent does not have
	latest  uint64                            // the number of the latest request
	round   chan struct{}                     // closed at the end of the present round, and replaced then
	settled uint64                            // the latest request that a round has dealt with
	ended   bool                              // no round follows
	// when unwanted services of the allocation begin to be removed; zero for never.
	adopt time.Time

	// Only Run uses the fields below.
	// IDs of services that the agent has, with the token of the registration, empty when unknown.
	has     map[string]string
	answers bool         // the last round reached its end, even if services were refused
	retry   wake.Backoff // after rounds in a row in which something failed
	logged  string       // the error that was logged last
}

var _ interfaces.CheckingProvider = (*Provider)(nil)

// New returns a Provider. It does no I/O. The error is about settings that can't be right.
func New(cfg Config) (*Provider, error) {
	if !cfg.Settings.Configured() {
		return nil, errors.New("there is no address of Consul's agent")
	}
	if err := cfg.Settings.Check(); err != nil {
		return nil, err
	}
	cfg.Namespace = cmp.Or(cfg.Namespace, cfg.Settings.Namespace)
	cfg.Partition = cmp.Or(cfg.Partition, cfg.Settings.Partition)
	if cfg.Namespace == "default" { // an agent without namespaces accepts no name
		cfg.Namespace = ""
	}
	cfg.Logger = cfg.Logger.With("agent", cfg.Settings.Address)
	return &Provider{
		client: agentClient{settings: cfg.Settings, secrets: cfg.Secrets, namespace: cfg.Namespace,
			partition: cfg.Partition, longest: maxAnswer},
		cfg: cfg, period: syncPeriod, settle: settleTime,
		wake: wake.New(), feed: wake.New(), round: make(chan struct{}),
		wanted: map[string]*service{}, gone: map[string]uint64{}, fed: map[string]interfaces.CheckResult{},
		unsent: map[string]bool{}, has: map[string]string{},
	}, nil
}

func (p *Provider) Name() string { return Name }

// Register returns at once. The services are registered as soon as the agent accepts them. The error is about a service
// that no agent accepts.
func (p *Provider) Register(_ context.Context, instances []*interfaces.ServiceInstance) error {
	made := make([]*service, 0, len(instances))
	var errs []error
	for _, in := range instances {
		s, err := newService(in, p.cfg.Owner, p.cfg.Namespace, p.cfg.Partition)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		made = append(made, s)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("register with Consul: %w", err)
	}
	p.mu.Lock()
	for _, s := range made {
		p.wanted[s.ID] = s
	}
	p.latest++
	p.mu.Unlock()
	p.wake.Send()
	return nil
}

// settleTime bounds how long Deregister and Registered wait for an agent that does not answer.
const settleTime = 2 * time.Second

// Deregister waits a bounded time for the agent. If the agent does not answer, the request is repeated until it does,
// or Run ends.
func (p *Provider) Deregister(ctx context.Context, ids []string) error {
	p.mu.Lock()
	p.latest++
	mine := p.latest
	for _, id := range ids {
		if s := p.wanted[id]; s != nil {
			for _, c := range s.checks { // another registration has results of its own
				delete(p.results, c.id)
				delete(p.fed, c.id)
				delete(p.unsent, c.id)
			}
		}
		delete(p.wanted, id)
		p.gone[id] = mine
	}
	p.mu.Unlock()
	p.wake.Send()
	timer := time.NewTimer(p.settle)
	defer timer.Stop()
	for {
		p.mu.Lock()
		round, done := p.round, p.settled >= mine || p.ended
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-round:
		case <-ctx.Done():
			return nil
		case <-timer.C:
			return nil
		}
	}
}

// Registered asks the agent. If the agent does not answer, the result is empty. A while later, services that have not
// been registered again are removed.
func (p *Provider) Registered(ctx context.Context, allocID string) ([]string, error) {
	ids, err := p.registered(ctx, allocID)
	if err != nil {
		p.cfg.Logger.Warn("can't read from Consul's agent what an earlier process has registered", "error", err)
		p.mu.Lock()
		p.adopt = time.Now().Add(adoptTime)
		p.mu.Unlock()
	}
	return ids, nil
}

// adoptTime is how long a resumed allocation has to register its services again, before the others are removed.
const adoptTime = time.Minute

func (p *Provider) registered(ctx context.Context, allocID string) ([]string, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.settle)
	defer cancel()
	q, err := p.options(ctx)
	if err != nil {
		return nil, err
	}
	found, err := p.client.api.Agent().ServicesWithFilterOpts(ofOwner(p.cfg.Owner), q)
	if err != nil {
		return nil, explained(err, "")
	}
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if allocOf(id) == allocID && found[id].Meta[metaOwner] == p.cfg.Owner {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Result returns the latest result of a check that the agent has. A script's result is known without the agent. A check
// that has not run has none.
func (p *Provider) Result(id string, n int) (interfaces.CheckResult, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.checkLocked(id, n)
	if !ok {
		return interfaces.CheckResult{}, false
	}
	from := p.results
	if c.script {
		from = p.fed
	}
	result, ok := from[c.id]
	return result, ok
}

func (p *Provider) checkLocked(id string, n int) (check, bool) {
	s := p.wanted[id]
	if s == nil || n < 0 || n >= len(s.checks) {
		return check{}, false
	}
	return s.checks[n], true
}

// Feed sends the result of a script. If the agent is away, or the service is not registered yet, Feed sends the result
// later.
func (p *Provider) Feed(id string, n int, result interfaces.CheckResult) {
	result.Output = strings.ToValidUTF8(result.Output[:min(len(result.Output), maxOutput)], "")
	p.mu.Lock()
	c, ok := p.checkLocked(id, n)
	if ok {
		p.fed[c.id], p.unsent[c.id] = result, true
	}
	p.mu.Unlock()
	if ok {
		p.feed.Send()
	}
}

// send sends a result of a script. A later result stays to be sent.
func (p *Provider) send(ctx context.Context, service, checkID string, result interfaces.CheckResult) error {
	err := p.request(ctx, fmt.Sprintf("result of a script of service %q", service), service,
		func(q *capi.QueryOptions) error {
			return p.client.api.Agent().UpdateTTLOpts(checkID, result.Output, statuses[result.Status], q)
		})
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.fed[checkID] == result {
		delete(p.unsent, checkID)
	}
	p.mu.Unlock()
	return nil
}

// options returns a request's options, with the present token.
func (p *Provider) options(ctx context.Context) (*capi.QueryOptions, error) {
	if err := p.client.open(); err != nil {
		return nil, err
	}
	token, err := p.client.token()
	if err != nil {
		return nil, err
	}
	q := capi.QueryOptions{Namespace: p.cfg.Namespace, Partition: p.cfg.Partition, Token: token}
	return q.WithContext(ctx), nil
}

// statuses are Consul's words. An unknown one is critical.
var statuses = map[interfaces.CheckStatus]string{
	interfaces.CheckSuccess: capi.HealthPassing,
	interfaces.CheckWarning: capi.HealthWarning,
	interfaces.CheckFailure: capi.HealthCritical,
}

func resultOf(c *capi.AgentCheck) interfaces.CheckResult {
	result := interfaces.CheckResult{Status: interfaces.CheckFailure, Output: c.Output}
	for status, word := range statuses {
		if c.Status == word {
			result.Status = status
		}
	}
	return result
}

package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"

	"taskapi/allocrunner/interfaces"
)

// ofOwner returns the filter for an owner's services.
func ofOwner(owner string) string { return fmt.Sprintf("Meta.%s == %q", metaOwner, owner) }

// round compares the agent's registrations with the wanted ones, and changes those that differ.
type round struct {
	*Provider
	ctx    context.Context
	agent  *capi.Agent
	wanted map[string]*service
	gone   map[string]uint64
	is     map[string]*capi.AgentService
	fresh  map[string]bool // IDs of services that this round has registered
	errs   []error         // of single services: the others go on
}

// newRound returns a round for the registrations that are wanted now. With an error, it returns a round, too.
func (p *Provider) newRound(ctx context.Context) (*round, error) {
	p.mu.Lock()
	t := &round{Provider: p, ctx: ctx, wanted: maps.Clone(p.wanted), gone: maps.Clone(p.gone), fresh: map[string]bool{}}
	p.mu.Unlock()
	err := p.client.open()
	if err == nil {
		t.agent = p.client.api.Agent()
	}
	return t, err
}

// once makes one round. A request that is not answered ends the round, and is err. The round goes on after requests
// that are refused.
func (p *Provider) once(ctx context.Context) (refusals, err error) {
	t, err := p.newRound(ctx)
	for _, step := range []func() error{t.read, t.remove, t.register, t.checks, t.scripts} {
		if err == nil {
			err = step()
		}
	}
	return some(t.errs), err
}

// some joins errors, of many only the first few.
func some(errs []error) error {
	const most = 3
	if more := len(errs) - most; more > 0 {
		errs = append(slices.Clone(errs[:most]), fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// do makes a request as request does. It keeps an error that is the agent's answer, and returns any other error.
func (t *round) do(what, service string, f func(q *capi.QueryOptions) error) error {
	err := t.request(t.ctx, what, service, f)
	if refused(err) {
		t.errs = append(t.errs, err)
		return nil
	}
	return err
}

// request makes a request about a service of this name, with a time limit and the present token.
func (p *Provider) request(
	ctx context.Context, what, service string, f func(q *capi.QueryOptions) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	q, err := p.options(ctx)
	if err == nil {
		err = f(q)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, explained(err, service))
}

// read reads this owner's services from the agent, and services of others that have the same IDs.
func (t *round) read() error {
	filter := ofOwner(t.cfg.Owner) + fmt.Sprintf(" or ID matches %q", "^"+idPrefix+t.cfg.AllocID+"-")
	err := t.request(t.ctx, "list services", "", func(q *capi.QueryOptions) (err error) {
		t.is, err = t.agent.ServicesWithFilterOpts(filter, q)
		return err
	})
	if err != nil {
		return err
	}
	maps.DeleteFunc(t.has, func(id, _ string) bool { return t.is[id] == nil })
	for id := range t.is {
		t.has[id] += "" // one that another process has registered has no token that is known here
	}
	return nil
}

// remove deregisters services that are no longer wanted, and services that a crash of another allocation has left
// behind.
func (t *round) remove() error {
	// Also those that the agent has not shown: the token may lack the right to read them.
	for _, id := range slices.Sorted(maps.Keys(t.gone)) {
		if err := t.deregister(id); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.is)) {
		if t.is[id].Meta[metaOwner] != t.cfg.Owner || !t.over(id) {
			continue
		}
		if err := t.deregister(id); err != nil {
			return err
		}
		if t.is[id] == nil {
			t.cfg.Logger.Info("removed from Consul the service of an allocation that has ended", "service", id)
		}
	}
	return nil
}

// over reports whether a service of this owner belongs to no allocation any more.
func (t *round) over(id string) bool {
	alloc := allocOf(id)
	if alloc != t.cfg.AllocID {
		return alloc != "" && !t.cfg.Lives(alloc)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.adopt.IsZero() && time.Now().After(t.adopt) && t.Provider.wanted[id] == nil
}

func (t *round) deregister(id string) error {
	name := "" // unknown if the agent does not show the service
	if is := t.is[id]; is != nil {
		name = is.Service
	}
	done := false
	err := t.do("deregister "+id, name, func(q *capi.QueryOptions) error {
		err := t.agent.ServiceDeregisterOpts(id, q)
		if done = err == nil || unknown(err); done {
			return nil
		}
		return err
	})
	if err != nil || !done {
		return err
	}
	delete(t.is, id)
	delete(t.has, id)
	t.mu.Lock()
	if t.Provider.gone[id] == t.gone[id] { // and not wanted again and left again since
		delete(t.Provider.gone, id)
	}
	t.mu.Unlock()
	return nil
}

// register registers services that are missing, that differ, or that were registered with another token. With a
// service's own token, the agent writes the results of its checks into Consul's catalog, and it stops when that token
// is revoked.
func (t *round) register() error {
	for _, id := range slices.Sorted(maps.Keys(t.wanted)) {
		s, is := t.wanted[id], t.is[id]
		registration, same := s.AgentServiceRegistration, false
		if is != nil {
			registration.Tags, same = s.asRegistered(is)
		}
		err := t.do(fmt.Sprintf("register service %q", s.Name), s.Name, func(q *capi.QueryOptions) error {
			if same && t.has[id] == q.Token {
				return nil
			}
			opts := capi.ServiceRegisterOpts{ReplaceExistingChecks: is != nil, Token: q.Token}.WithContext(q.Context())
			if err := t.agent.ServiceRegisterOpts(&registration, opts); err != nil {
				return err
			}
			t.fresh[id] = true
			t.has[id] = q.Token
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checks registers checks that somebody has removed from a registered service, removes those that the job no longer
// has, and reads the results.
func (t *round) checks() error {
	found, err := t.results()
	if err != nil {
		return err
	}
	known := map[string]bool{}
	registered := maps.Clone(t.fresh)
	for _, id := range slices.Sorted(maps.Keys(t.wanted)) {
		s := t.wanted[id]
		_, there := t.has[id]
		for _, c := range s.Checks {
			known[c.CheckID] = true
			if found[c.CheckID] != nil || registered[id] || !there {
				continue
			}
			definition := *c
			definition.CheckID = "" // the field has another name in this request, and an agent refuses unknown ones
			err := t.do(fmt.Sprintf("register check %s of service %q", interfaces.Quote(c.Name), s.Name), s.Name,
				func(q *capi.QueryOptions) error {
					return t.agent.CheckRegisterOpts(&capi.AgentCheckRegistration{
						ID: c.CheckID, Name: c.Name, Notes: c.Notes, ServiceID: id, AgentServiceCheck: definition,
						Namespace: s.Namespace, Partition: s.Partition,
					}, q)
				})
			if err != nil {
				return err
			}
			t.fresh[id] = true // what its scripts have found is sent again
		}
	}
	for id, c := range found {
		if t.wanted[c.ServiceID] == nil || known[id] || !strings.HasPrefix(id, checkIDPrefix) {
			continue
		}
		err := t.do("deregister check "+id, t.wanted[c.ServiceID].Name, func(q *capi.QueryOptions) error {
			if err := t.agent.CheckDeregisterOpts(id, q); err != nil && !unknown(err) {
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// results reads the results of the checks.
func (t *round) results() (found map[string]*capi.AgentCheck, err error) {
	if len(t.wanted) == 0 {
		return map[string]*capi.AgentCheck{}, nil
	}
	err = t.request(t.ctx, "list checks", "", func(q *capi.QueryOptions) (err error) {
		found, err = t.agent.ChecksWithFilterOpts(fmt.Sprintf("ServiceID matches %q", "^"+idPrefix+t.cfg.AllocID+"-"),
			q)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Provider.results = map[string]interfaces.CheckResult{}
	for id, s := range t.Provider.wanted {
		// Registered again meanwhile: the results are the earlier registration's.
		if t.wanted[id] != s || t.Provider.gone[id] != t.gone[id] {
			continue
		}
		for _, c := range s.checks {
			if is := found[c.id]; is != nil && is.Output != "" { // one without output has not run
				t.Provider.results[c.id] = resultOf(is)
			}
		}
	}
	return found, nil
}

// scripts sends the results of scripts that the agent does not have.
func (t *round) scripts() error {
	t.mu.Lock()
	for id := range t.fresh {
		for _, c := range t.wanted[id].checks {
			if _, ok := t.fed[c.id]; ok {
				t.unsent[c.id] = true
			}
		}
	}
	t.mu.Unlock()
	err := t.sendScripts(t.ctx)
	if refused(err) {
		t.errs = append(t.errs, err)
		return nil
	}
	return err
}

// sendScripts sends the results of scripts that the agent does not have, of services that it has. It goes on after one
// that is refused.
func (p *Provider) sendScripts(ctx context.Context) error {
	type result struct {
		service, check string
		interfaces.CheckResult
	}
	var list []result
	p.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(p.has)) {
		if s := p.wanted[id]; s != nil {
			for _, c := range s.checks {
				if p.unsent[c.id] {
					list = append(list, result{s.Name, c.id, p.fed[c.id]})
				}
			}
		}
	}
	p.mu.Unlock()
	var refusals []error
	for _, r := range list {
		err := p.send(ctx, r.service, r.check, r.CheckResult)
		if err != nil && !refused(err) {
			return err
		}
		if err != nil {
			refusals = append(refusals, err)
		}
	}
	return some(refusals)
}

// ask reads only the results of the checks.
func (p *Provider) ask(ctx context.Context) error {
	t, err := p.newRound(ctx)
	if err == nil {
		_, err = t.results()
	}
	return err
}

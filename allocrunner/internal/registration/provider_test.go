package registration_test

import (
	"context"
	"errors"
	"sync"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/registration/registrationtest"
)

var errAway = errors.New("away")

// provider is a provider of services that fails, or that makes calls wait.
type provider struct {
	*registrationtest.Provider

	mu    sync.Mutex // guards the fields below
	away  error
	until chan struct{} // calls wait until it is closed; nil for no wait
}

func newProvider(name string) *provider { return &provider{Provider: registrationtest.New(name, nil)} }

// setAway has calls fail with errAway, or work again.
func (p *provider) setAway(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = nil
	if away {
		p.away = errAway
	}
}

func (p *provider) ready(ctx context.Context) error {
	p.mu.Lock()
	until, away := p.until, p.away
	p.mu.Unlock()
	if until == nil {
		return away
	}
	select {
	case <-until:
		return away
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *provider) Register(ctx context.Context, list []*interfaces.ServiceInstance) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	return p.Provider.Register(ctx, list)
}

func (p *provider) Deregister(ctx context.Context, ids []string) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	return p.Provider.Deregister(ctx, ids)
}

func (p *provider) Registered(ctx context.Context, allocID string) ([]string, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	return p.Provider.Registered(ctx, allocID)
}

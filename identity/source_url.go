package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	// DefaultRefresh is how often a URL is fetched unless configured. An issuer publishes a key well before signing with it.
	DefaultRefresh = 5 * time.Minute
	// MinRefresh is the least time between two fetches, also after a failure: ours is not to burden another's server.
	MinRefresh = 30 * time.Second
	// DefaultMaxStale is how long the last set fetched is trusted while fetching fails, unless configured: a night's outage.
	DefaultMaxStale = 24 * time.Hour
	// fetchTimeout bounds one fetch, whole.
	fetchTimeout = 10 * time.Second
)

// URLSourceConfig says where a JWK set is fetched.
type URLSourceConfig struct {
	// URL is an http or https address. Required. What http brings is trusted like the network that it came over.
	URL string
	// Name is what logs call the source. Empty means URL.
	Name string
	// Refresh is the time between fetches, at least MinRefresh. 0 means DefaultRefresh.
	Refresh time.Duration
	// MaxStale is how long keys outlive the last fetch that succeeded. 0 means DefaultMaxStale.
	MaxStale time.Duration
	// Transport is used for fetching. Nil means one of its own that keeps no connection.
	Transport http.RoundTripper
}

// URLSource is a JWK set at a URL. Run fetches it; a look-up never does, so nobody's token can cause a fetch or wait for one.
type URLSource struct {
	url, name         string
	refresh, maxStale time.Duration
	client            *http.Client
	current           atomic.Pointer[KeySet]
}

// NewURLSource returns a source that is empty until Run has fetched it.
func NewURLSource(c URLSourceConfig) (*URLSource, error) {
	u, err := url.Parse(c.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return nil, errors.New("key set URL: want http://HOST/PATH or https://HOST/PATH, without a user")
	}
	c.Refresh, c.MaxStale = cmp.Or(c.Refresh, DefaultRefresh), cmp.Or(c.MaxStale, DefaultMaxStale)
	if c.Refresh < MinRefresh || c.MaxStale < c.Refresh {
		return nil, fmt.Errorf("key set URL: want a refresh of at least %v, and keys kept for no less: have %v and %v",
			MinRefresh, c.Refresh, c.MaxStale)
	}
	if c.Transport == nil {
		c.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	}
	client := &http.Client{
		Transport: c.Transport,
		Timeout:   fetchTimeout,
		// The keys come from the address that the operator wrote down, or not at all.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &URLSource{
		url: c.URL, name: cmp.Or(c.Name, c.URL), refresh: c.Refresh, maxStale: c.MaxStale, client: client,
	}, nil
}

// Keys makes the URL a KeySource.
func (s *URLSource) Keys() *KeySet { return s.current.Load() }

// Run fetches the set at once and then on its schedule, after a failure sooner, until ctx ends. A set that is bad or can't be had leaves
// the last good one in place, until that is older than MaxStale.
func (s *URLSource) Run(ctx context.Context, logger *slog.Logger) {
	fetched := time.Now()
	var document string
	report := reporting(logger.With("jwks", s.name), s.Keys, func() (bool, error) {
		next, err := s.fetch(ctx)
		if ctx.Err() != nil {
			return false, nil
		}
		if err != nil {
			if time.Since(fetched) >= s.maxStale {
				s.current.Store(nil)
				document = ""
				err = fmt.Errorf("no key of it is trusted any more after %v without a good answer: %w", s.maxStale, err)
			}
			return false, err
		}
		fetched = time.Now()
		changed := next != document
		document = next
		return changed, nil
	})
	for {
		wait := s.refresh
		if !report() {
			wait = MinRefresh
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// fetch gets the set once, publishes it and returns its text.
func (s *URLSource) fetch(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return "", err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return "", fmt.Errorf("fetch key set: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("fetch key set: answered with status %d, want 200", response.StatusCode)
	}
	document, err := io.ReadAll(io.LimitReader(response.Body, keySetLimit+1))
	if err != nil {
		return "", fmt.Errorf("fetch key set: %w", err)
	}
	set, err := ParseJWKS(document)
	if err != nil {
		return "", err
	}
	s.current.Store(set)
	return string(document), nil
}

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
	"time"

	"taskapi/internal/wake"
)

const (
	// refreshInterval is how often a URL is fetched. An issuer publishes a key well before signing with it.
	refreshInterval = 5 * time.Minute
	// retryInterval is the time between two fetches after a failure, so that the other's server is not burdened.
	retryInterval = 30 * time.Second
	// maxStale is how long the latest good set is trusted while it can't be had. It is enough for a night's outage.
	maxStale = 24 * time.Hour
	// fetchTimeout bounds a whole fetch.
	fetchTimeout = 10 * time.Second
)

// URLSourceConfig says where a JWK set is fetched.
type URLSourceConfig struct {
	// URL is an http or https address. Required. Keys that come by http are as trustworthy as the network between.
	URL string
	// Name is the source's name in logs. Empty means URL.
	Name string
	// Transport is used for fetching. Nil means one that keeps no connections.
	Transport http.RoundTripper
}

// URLSource is a JWK set at a URL. Run fetches it. A look-up of a key never does, so no token can cause a fetch or wait
// for one.
type URLSource struct {
	url, name string
	client    *http.Client
	following
}

// NewURLSource returns a source that is empty until Run has fetched the set.
func NewURLSource(c URLSourceConfig) (*URLSource, error) {
	u, err := url.Parse(c.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return nil, errors.New("key set URL: want http://HOST/PATH or https://HOST/PATH, without a user")
	}
	if c.Transport == nil {
		c.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	}
	client := &http.Client{
		Transport: c.Transport,
		Timeout:   fetchTimeout,
		// The keys come only from the address that the operator wrote down.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &URLSource{url: c.URL, name: cmp.Or(c.Name, c.URL), client: client}, nil
}

// Run fetches the set at once and then on its schedule, after a failure sooner, until ctx ends. While the set can't be
// fetched or is bad, the last good one stays in place, for a day at most.
func (s *URLSource) Run(ctx context.Context, logger *slog.Logger) {
	report := reporting(logger.With("jwks", s.name), s.Keys, func() (bool, error) {
		document, err := s.fetch(ctx)
		if ctx.Err() != nil {
			return false, nil
		}
		return s.take(document, err, "fetch key set", maxStale)
	})
	for {
		wait := refreshInterval
		if !report() {
			wait = retryInterval
		}
		if wake.Sleep(ctx, wait) != nil {
			return
		}
	}
}

func (s *URLSource) fetch(ctx context.Context) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered with status %d, want 200", response.StatusCode)
	}
	return io.ReadAll(io.LimitReader(response.Body, keySetLimit+1))
}

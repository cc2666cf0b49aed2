package consultest

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// Proxy stands between a client and an agent, either a stand-in or a real one, and can keep them apart. Its methods may
// be called from several goroutines.
type Proxy struct {
	URL string

	pass http.Handler

	mu      sync.Mutex       // guards the fields below
	instead http.HandlerFunc // answers all requests; nil passes them on
	changed chan struct{}    // closed when instead changes
	count   int
}

// NewProxy starts a proxy before the agent at an address, such as Agent.URL.
func NewProxy(tb testing.TB, address string) *Proxy {
	tb.Helper()
	target, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	transport := &http.Transport{}
	pass := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	p := &Proxy{pass: pass, changed: make(chan struct{})}
	server := httptest.NewServer(p)
	p.URL = server.URL
	tb.Cleanup(func() {
		p.Back()
		server.Close()
		transport.CloseIdleConnections()
	})
	return p
}

// Away closes each connection without an answer.
func (p *Proxy) Away() {
	p.set(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

// Answer answers all requests itself.
func (p *Proxy) Answer(status int, body string) {
	p.set(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // the client may not want all of it
	})
}

// Hang answers no request until Back.
func (p *Proxy) Hang() {
	hang := p.set(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.instead = func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
}

// Back passes requests on again.
func (p *Proxy) Back() { p.set(nil) }

// set returns a channel that is closed by the next call.
func (p *Proxy) set(instead http.HandlerFunc) (changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.instead, p.changed = instead, make(chan struct{})
	return p.changed
}

// Count returns how many requests there have been.
func (p *Proxy) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.count++
	serve := p.instead
	p.mu.Unlock()
	if serve == nil {
		serve = p.pass.ServeHTTP
	}
	serve(w, r)
}

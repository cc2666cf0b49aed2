package consultest

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// Proxy stands between a client and an agent, this one or a real one, and can keep them apart. Its methods may be called from several
// goroutines.
type Proxy struct {
	URL string

	pass http.Handler

	mu     sync.Mutex // guards the fields below
	status int        // of all answers; 0 passes requests on
	away   bool
	hang   chan struct{} // closed when requests need wait no longer; nil while none do
	body   string
	count  int
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
	p := &Proxy{pass: pass}
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
func (p *Proxy) Away() { p.set(func() { p.away = true }) }

// Answer gives all requests an answer of its own.
func (p *Proxy) Answer(status int, body string) { p.set(func() { p.status, p.body = status, body }) }

// Hang answers nothing.
func (p *Proxy) Hang() { p.set(func() { p.hang = make(chan struct{}) }) }

// Back passes requests on again.
func (p *Proxy) Back() { p.set(func() {}) }

func (p *Proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hang != nil {
		close(p.hang)
	}
	p.status, p.away, p.hang, p.body = 0, false, nil, ""
	f()
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
	status, away, hang, body := p.status, p.away, p.hang, p.body
	p.mu.Unlock()
	switch {
	case away:
		panic(http.ErrAbortHandler)
	case hang != nil:
		select {
		case <-hang:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case status != 0:
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // the client may not want all of it
	default:
		p.pass.ServeHTTP(w, r)
	}
}

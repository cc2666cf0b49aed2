package consultest

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
)

// Proxy stands between a client and an agent, either a stand-in or a real one, and can keep them apart. Its methods may
// be called from several goroutines.
type Proxy struct {
	URL string

	pass    http.HandlerFunc
	instead atomic.Pointer[http.HandlerFunc] // answers all requests; nil passes them on
	count   atomic.Int64
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
	}
	p := &Proxy{pass: pass.ServeHTTP}
	server := httptest.NewServer(p)
	p.URL = server.URL
	tb.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	return p
}

// Away closes each connection without an answer.
func (p *Proxy) Away() {
	p.Instead(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

// Instead has all requests answered by a handler.
func (p *Proxy) Instead(answer http.HandlerFunc) { p.instead.Store(&answer) }

// Back passes requests on again.
func (p *Proxy) Back() { p.instead.Store(nil) }

// Count returns how many requests there have been.
func (p *Proxy) Count() int { return int(p.count.Load()) }

func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.count.Add(1)
	cmp.Or(p.instead.Load(), &p.pass).ServeHTTP(w, r)
}

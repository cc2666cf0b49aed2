package upstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"taskapi/socket"
)

// Address is where the agent answers: a Unix socket, or a URL's scheme and host.
type Address struct {
	Socket       string
	scheme, host string
}

// ParseAddress reads unix:///PATH or https://HOST:PORT. While an agent is away, any user of the machine may listen on
// its port, so an agent without TLS is reached by its socket alone.
func ParseAddress(text string) (Address, error) {
	const form = "give unix:///PATH of an agent's socket, such as unix://$NOMAD_SECRETS_DIR/api.sock, or https://HOST:4646"
	if path, ok := strings.CutPrefix(text, "unix://"); ok {
		if !filepath.IsAbs(path) {
			return Address{}, fmt.Errorf("%q has no absolute path: %s", text, form)
		}
		return Address{Socket: path, scheme: "http", host: "localhost"}, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return Address{}, fmt.Errorf("%q is no address of an agent: %s", text, form)
	case u.Scheme == "http":
		return Address{}, fmt.Errorf("%q has no TLS, so it can't prove that it is the agent, and would get tokens: %s", text,
			form)
	case u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return Address{}, fmt.Errorf("%q has more than a host and a port: %s", text, form)
	}
	return Address{scheme: u.Scheme, host: u.Host}, nil
}

// String returns the address as ParseAddress reads it.
func (a Address) String() string {
	if a.Socket != "" {
		return "unix://" + a.Socket
	}
	return a.scheme + "://" + a.host
}

// The bounds of connections to the agent.
const (
	dialTime    = 2 * time.Second
	mostIdle    = 64
	idleTime    = 30 * time.Second // the agent closes idle connections later
	maxHeadBack = 64 << 10
)

// transport returns connections to the address. trust may be nil, for the machine's authorities.
func (a Address) transport(trust *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTime}
	dial := dialer.DialContext
	if a.Socket != "" {
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTime)
			defer cancel()
			return socket.Dial(ctx, a.Socket)
		}
	}
	return &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        trust,
		TLSHandshakeTimeout:    dialTime,
		MaxIdleConnsPerHost:    mostIdle,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: maxHeadBack,
		DisableCompression:     true,
	}
}

// request returns a query of the resource that waits for a change after the index; 0: it does not wait.
func (a Address) request(ctx context.Context, of resource, index uint64, token string) (*http.Request, error) {
	path, err := url.PathUnescape(of.path)
	if err != nil {
		return nil, err
	}
	u := &url.URL{Scheme: a.scheme, Host: a.host, Path: path, RawPath: of.path, RawQuery: blocking(of.query, index)}
	r := (&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}}).WithContext(ctx)
	if token != "" {
		r.Header["X-Nomad-Token"] = []string{token}
	}
	return r, nil
}

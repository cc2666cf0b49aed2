package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	capi "github.com/hashicorp/consul/api"

	"taskapi/internal/tokenfile"
)

// The limits of requests to the agent, and of its answers.
const (
	requestTimeout = 5 * time.Second
	maxAnswer      = 16 << 20 // bytes: the services and checks of thousands of tasks
	maxElements    = 300_000  // of lists and objects: about 40 in a service, and up to 500 bytes of memory for each
)

var errTooLong = errors.New("the answer of Consul's agent is too long")

// agentClient is the official client with limits for everything. It keeps one idle connection at most. Several
// goroutines may use it.
type agentClient struct {
	settings             Settings
	secrets              Secrets
	namespace, partition string
	longest              int64 // answer, in bytes
	blocking             bool  // contexts bound the time of requests

	mu   sync.Mutex // held by open, which sets the fields below
	http *http.Client
	api  *capi.Client
}

// open makes the client, unless it is made already. It reads the files that the settings name.
func (c *agentClient) open() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api != nil {
		return nil
	}
	at, err := c.settings.endpoint()
	if err != nil {
		return err
	}
	tls, err := capi.SetupTLSConfig(&capi.TLSConfig{
		Address: c.settings.TLSServerName, CAFile: c.settings.CAFile, CAPath: c.settings.CAPath,
		CertFile: c.settings.CertFile, KeyFile: c.settings.KeyFile, InsecureSkipVerify: c.settings.SkipVerify,
	})
	if err != nil {
		return fmt.Errorf("the certificates for Consul: %w", err)
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: tls, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 64 << 10, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10,
	}
	if at.socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", at.socket)
		}
	}
	timeout := requestTimeout
	if c.blocking {
		timeout = 0
	}
	c.http = &http.Client{
		Transport: bounded{transport, c.longest},
		Timeout:   timeout,
		// The token is for this agent alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	cfg := &capi.Config{Address: at.base, HttpClient: c.http, Namespace: c.namespace, Partition: c.partition,
		Token: c.secrets.Token}
	if user, password, ok := strings.Cut(c.secrets.Auth, ":"); ok || user != "" {
		cfg.HttpAuth = &capi.HttpBasicAuth{Username: user, Password: password}
	}
	c.api, err = capi.NewClient(cfg)
	return err
}

// TryFiles reads every file that the settings name, as a Provider does.
func (s Settings) TryFiles() error {
	if !s.Configured() {
		return nil
	}
	c := &agentClient{settings: s}
	if err := c.open(); err != nil {
		return err
	}
	_, err := c.token()
	return err
}

// token returns the present token. The errors are those of its file.
func (c *agentClient) token() (string, error) {
	if c.settings.TokenFile == "" {
		return c.secrets.Token, nil
	}
	token, err := tokenfile.Read(c.settings.TokenFile) // without a token the agent would show less than there is
	if err != nil {
		return "", fmt.Errorf("the token for Consul: %w", err)
	}
	return token, nil
}

// close ends the connections.
func (c *agentClient) close() {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// bounded is a transport whose answers end with an error when they are too long.
type bounded struct {
	*http.Transport
	longest int64
}

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.Transport.RoundTrip(req)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, b.longest, maxElements}
	}
	return resp, err
}

// boundedBody counts the bytes and the elements of an answer before it is decoded: "{}," has three bytes, and takes
// hundreds when decoded.
type boundedBody struct {
	io.ReadCloser
	left, elements int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	b.elements -= int64(bytes.Count(p[:n], []byte{','}) + bytes.Count(p[:n], []byte{'{'}))
	if b.left < 0 || b.elements < 0 {
		return 0, errTooLong
	}
	return n, err
}

// refused reports whether the error is the agent's answer.
func refused(err error) bool {
	_, ok := errors.AsType[capi.StatusError](err)
	return ok
}

// unknown reports whether the agent does not know the service or the check that was to be changed.
func unknown(err error) bool {
	answer, ok := errors.AsType[capi.StatusError](err)
	return ok && (answer.Code == http.StatusNotFound || strings.HasPrefix(answer.Body, "Unknown "))
}

// explained adds to an error which ACL rule is missing, if the agent has refused a request about a service of this name
// for that reason.
func explained(err error, service string) error {
	// Its address contains the whole filter, and the log has the agent's address.
	if request, ok := errors.AsType[*url.Error](err); ok {
		return request.Err
	}
	answer, ok := errors.AsType[capi.StatusError](err)
	switch {
	case !ok || answer.Code != http.StatusForbidden:
		return err
	case strings.Contains(answer.Body, "ACL not found"):
		return fmt.Errorf("the token is unknown to Consul: it was deleted, has expired or is not one of this Consul: %w", err)
	case service != "" && strings.Contains(answer.Body, "ermission denied"):
		return fmt.Errorf(`the token needs the rule service %q { policy = "write" }: %w`, service, err)
	}
	return err
}

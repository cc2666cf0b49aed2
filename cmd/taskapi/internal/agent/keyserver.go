package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"taskapi/cmd/taskapi/internal/httpserve"
	"taskapi/identity"
)

// Bounds of the listener for public keys, to which everybody on the machine can connect.
const (
	maxKeyReaders  = 64 // connections at a time
	keyRequestTime = 5 * time.Second
)

// Paths of OpenID Connect Discovery 1.0 section 4 and of the key set.
const (
	discoveryPath = "/.well-known/openid-configuration"
	keySetPath    = "/.well-known/jwks.json"
)

// KeyServerConfig says how public keys are served. All fields but Issuer and Remote are required.
type KeyServerConfig struct {
	Keyring *identity.Keyring
	Listen  string // an address for httpserve.ParseAddress
	Issuer  string // empty for the URL of the server
	Remote  bool   // the address may be one that other machines reach
	// All returns the key set that is served, from that of the ring; nil for the ring's.
	All    func(ctx context.Context, own []byte) []byte
	Logger *slog.Logger
}

// KeyServer serves the public keys of a ring and the OpenID configuration of their issuer, to everybody, and
// nothing else.
type KeyServer struct {
	config   KeyServerConfig
	listener *httpserve.Listener
	issuer   string
	base     string // the path of the issuer
	private  bool   // it is a Unix socket, which no browser can reach
}

// ListenKeys listens on the address. Errors that are the caller's fault are InvalidError.
func ListenKeys(config KeyServerConfig) (*KeyServer, error) {
	address, err := httpserve.ParseAddress(config.Listen)
	switch {
	case err != nil:
		return nil, invalidAs("--listen", err)
	case !address.Local() && !config.Remote:
		return nil, invalid(fmt.Errorf("--listen %s: other machines may reach this address: give 127.0.0.1 or ::1, or "+
			"--remote to serve the public keys to them, too", address))
	case address.TCP.Addr().IsUnspecified() && config.Issuer == "":
		return nil, invalid(fmt.Errorf("--listen %s is no address for clients: give --issuer with the URL that they use",
			address))
	}
	if err := invalidAs("--issuer", CheckIssuer(config.Issuer)); err != nil {
		return nil, err
	}
	listener, err := httpserve.Listen(address, maxKeyReaders)
	if err != nil {
		return nil, invalidAs("--listen", err)
	}
	warnOfTakers(address, "public keys", config.Logger)
	s := &KeyServer{config: config, listener: listener, issuer: config.Issuer, private: address.Socket != ""}
	if s.issuer == "" && address.Socket == "" {
		s.issuer = s.URL()
	}
	if u, err := url.Parse(s.issuer); err == nil {
		s.base = strings.TrimSuffix(u.Path, "/")
	}
	return s, nil
}

// URL returns the address of the server.
func (s *KeyServer) URL() string { return s.listener.URL() }

// Issuer returns the issuer that the OpenID configuration names. Tokens must name it, too. It is empty when a Unix
// socket serves without an issuer, and so without that configuration.
func (s *KeyServer) Issuer() string { return s.issuer }

// Serve serves the keys as they are in the ring, until ctx ends.
func (s *KeyServer) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() { s.config.Keyring.Watch(ctx, s.config.Logger) })
	server := &http.Server{Handler: s, ReadTimeout: keyRequestTime, WriteTimeout: keyRequestTime}
	return s.listener.Serve(ctx, server, s.config.Logger)
}

// ServeHTTP answers GET and HEAD with one of the two documents.
func (s *KeyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	var document []byte
	switch {
	case !s.private && !s.named(r.Host):
		http.Error(w, "this server is not that host", http.StatusMisdirectedRequest)
		return
	case r.URL.EscapedPath() == keySetPath, r.URL.EscapedPath() == s.base+keySetPath:
		// The first request after another process's rotation gets the new keys. Serve logs why they can't be read.
		_, _ = s.config.Keyring.Reload()
		document = s.config.Keyring.JWKS()
		if s.config.All != nil {
			document = s.config.All(r.Context(), document)
		}
	case s.issuer != "" && (r.URL.EscapedPath() == discoveryPath || r.URL.EscapedPath() == s.base+discoveryPath):
		document = OpenIDConfiguration(s.issuer)
	default:
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	h.Set("Content-Type", "application/json")
	_, _ = w.Write(document) // a client that has gone needs no answer
}

// named reports whether a request's Host may be this server: an address, localhost, or the issuer's.
func (s *KeyServer) named(host string) bool {
	if httpserve.NamesThisMachine(host) {
		return true
	}
	asked := url.URL{Host: host}
	u, err := url.Parse(s.issuer)
	return err == nil && host != "" && strings.EqualFold(u.Hostname(), asked.Hostname())
}

// Close closes a server on which Serve is not called.
func (s *KeyServer) Close() error { return s.listener.Close() }

// invalidAs names the flag or the setting in an error about its value.
func invalidAs(name string, err error) error {
	if err == nil {
		return nil
	}
	return invalid(fmt.Errorf("%s %w", name, err))
}

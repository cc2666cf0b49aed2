package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskapi/handlers"
	"taskapi/identity"
)

// Bounds of the listener for public keys, which anybody on the machine can connect to.
const (
	maxKeyReaders  = 64 // connections at a time; more are closed
	maxKeyHead     = 8 << 10
	keyRequestTime = 5 * time.Second
	keyIdleTime    = 30 * time.Second
	keyEndTime     = 3 * time.Second
)

// Paths of OpenID Connect Discovery 1.0 section 4 and of the key set.
const (
	discoveryPath = "/.well-known/openid-configuration"
	keySetPath    = "/.well-known/jwks.json"
)

// KeyServerConfig says how public keys are served. All but Issuer and Remote is required.
type KeyServerConfig struct {
	Keyring *identity.Keyring
	Listen  string // address and port
	Issuer  string // empty for the URL that is served
	Remote  bool   // others than this machine may be served
	Logger  *slog.Logger
}

// KeyServer serves the public keys of a ring, and the OpenID configuration of their issuer, over TCP without a token, and nothing else.
type KeyServer struct {
	config   KeyServerConfig
	listener net.Listener
	issuer   string
	base     string // the path of the issuer
}

// ListenKeys takes the address. Errors that the caller can do something about are InvalidError.
func ListenKeys(config KeyServerConfig) (*KeyServer, error) {
	address, err := listenAddress("listen", config.Listen)
	if err != nil {
		return nil, invalid(err)
	}
	if !address.Addr().IsLoopback() && !config.Remote {
		return nil, invalid(fmt.Errorf("--listen %s: other machines may reach this address: give 127.0.0.1 or ::1, or --remote to serve the public keys to them, too", address))
	}
	if err := CheckIssuer("--issuer", config.Issuer); err != nil {
		return nil, err
	}
	if address.Addr().IsUnspecified() && config.Issuer == "" {
		return nil, invalid(fmt.Errorf("--listen %s is no address that others can ask: give --issuer with the URL that they use", address))
	}
	listener, err := net.Listen("tcp", address.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, invalid(fmt.Errorf("--listen %s: another program listens there; choose another port, or 0 for any", address))
	}
	if err != nil {
		if cause, ok := errors.AsType[syscall.Errno](err); ok {
			err = cause
		}
		return nil, invalid(fmt.Errorf("--listen %s: %w", address, err))
	}
	s := &KeyServer{config: config, listener: newFewConns(listener, maxKeyReaders), issuer: config.Issuer}
	if s.issuer == "" {
		s.issuer = s.URL()
	}
	if u, err := url.Parse(s.issuer); err == nil {
		s.base = strings.TrimSuffix(u.Path, "/")
	}
	return s, nil
}

// URL returns what is served.
func (s *KeyServer) URL() string { return "http://" + s.listener.Addr().String() }

// Issuer returns the issuer that the OpenID configuration names, which tokens must name, too.
func (s *KeyServer) Issuer() string { return s.issuer }

// Serve serves until ctx ends, and follows the ring.
func (s *KeyServer) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler:                      s,
		MaxHeaderBytes:               maxKeyHead,
		ReadHeaderTimeout:            keyRequestTime,
		ReadTimeout:                  keyRequestTime,
		WriteTimeout:                 keyRequestTime,
		IdleTimeout:                  keyIdleTime,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.config.Logger.Handler(), slog.LevelDebug),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { s.config.Keyring.Watch(ctx, s.config.Logger) })
	background.Go(func() {
		<-ctx.Done()
		within, end := context.WithTimeout(context.Background(), keyEndTime)
		defer end()
		if server.Shutdown(within) != nil {
			_ = server.Close() // who still reads has had its time
		}
	})
	err := server.Serve(s.listener)
	cancel()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeHTTP answers the two documents, to GET and HEAD.
func (s *KeyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache") // after a rotation the next question is to see it
	var document []byte
	switch {
	case !s.named(r.Host):
		http.Error(w, "this server is not that host", http.StatusMisdirectedRequest)
		return
	case r.URL.EscapedPath() == keySetPath, r.URL.EscapedPath() == s.base+keySetPath:
		document = s.config.Keyring.JWKS()
	case r.URL.EscapedPath() == discoveryPath, r.URL.EscapedPath() == s.base+discoveryPath:
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
	if handlers.NamesThisMachine(host) {
		return true
	}
	asked := url.URL{Host: host}
	u, err := url.Parse(s.issuer)
	return err == nil && host != "" && strings.EqualFold(u.Hostname(), asked.Hostname())
}

// Close gives back the address of a server that does not serve.
func (s *KeyServer) Close() error { return s.listener.Close() }

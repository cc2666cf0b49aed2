package checks_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskapi/internal/must"
)

// trustTestServers makes the certificate of httptest's servers, which is for 127.0.0.1 and example.com, the only one
// that this process trusts. The system's certificates are read once, so it comes before every test.
func trustTestServers() {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	file, err := os.CreateTemp("", "trusted-*.pem")
	if err == nil {
		defer os.Remove(file.Name())
		err = pem.Encode(file, &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	}
	if err != nil {
		log.Fatal(err)
	}
	os.Setenv("SSL_CERT_FILE", file.Name())
	os.Setenv("SSL_CERT_DIR", "/nonexistent")
	if _, err := x509.SystemCertPool(); err != nil { // reads them
		log.Fatal(err)
	}
}

// selfSigned returns a certificate that nobody trusts, for inner.example.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"inner.example"},
		NotAfter: time.Now().Add(time.Hour)}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestHTTPS(t *testing.T) {
	own := &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}
	for name, c := range map[string]struct {
		server     *tls.Config // nil for the trusted certificate
		skip       bool
		serverName string
		plain      bool // the check speaks http
		ok         bool
		output     string
		requested  string // the server name in the handshake
	}{
		"by address":      {ok: true, output: "nomad: http ok"},
		"by name":         {serverName: "example.com", ok: true, output: "nomad: http ok", requested: "example.com"},
		"by another name": {serverName: "other.example", output: "not other.example", requested: "other.example"},
		"not trusted": {server: own, serverName: "inner.example", output: "unknown authority",
			requested: "inner.example"},
		"not verified": {server: own, skip: true, ok: true, output: "nomad: http ok"},
		"not verified, named": {server: own, skip: true, serverName: "x.example", ok: true, output: "nomad: http ok",
			requested: "x.example"},
		"http to https": {plain: true, output: "HTTP request to an HTTPS server"},
	} {
		t.Run(name, func(t *testing.T) {
			var requested atomic.Value
			requested.Store("")
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.TLS = &tls.Config{}
			if c.server != nil {
				server.TLS = c.server.Clone()
			}
			server.TLS.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				requested.Store(h.ServerName)
				return nil, nil
			}
			server.StartTLS()
			defer server.Close()
			check := httpCheck("c", "/")
			check.TLSSkipVerify, check.TLSServerName = c.skip, c.serverName
			if !c.plain {
				check.Protocol = "https"
			}
			cfg := newConfig(newAlloc(check))
			cfg.Ports = onPort(portOf(t, server.Listener.Addr().String()))
			r := startWatched(t, cfg)
			got := r.await(t, "c")
			if (got.Status == "success") != c.ok || !strings.Contains(got.Output, c.output) {
				t.Errorf("got %s %q, want success %v and %q", got.Status, got.Output, c.ok, c.output)
			}
			if requested.Load() != c.requested {
				t.Errorf("the handshake has the name %q, want %q", requested.Load(), c.requested)
			}
			r.Stop()
		})
	}
}

// Checks that treat TLS alike share a client, and others do not.
func TestClientsAreNotMixedUp(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}
	server.StartTLS()
	defer server.Close()
	lax, strict, lax2 := httpCheck("lax", "/"), httpCheck("strict", "/"), httpCheck("lax2", "/")
	lax.Protocol, strict.Protocol, lax2.Protocol = "https", "https", "https"
	lax.TLSSkipVerify, lax2.TLSSkipVerify = true, true
	cfg := newConfig(newAlloc(lax, strict, lax2))
	cfg.Ports = onPort(portOf(t, server.Listener.Addr().String()))
	r := startWatched(t, cfg)
	for name, want := range map[string]string{"lax": "success", "strict": "failure", "lax2": "success"} {
		if got := r.await(t, name); got.Status != want {
			t.Errorf("%s: %s %q, want %s", name, got.Status, got.Output, want)
		}
	}
}

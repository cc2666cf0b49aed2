package consul_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

func mustPEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.pem")
	must.OK(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}

// TestTransports: an agent is reached by HTTPS with an authority and a certificate of one's own, and through a Unix
// socket; the log says why another is not.
func TestTransports(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	secure := httptest.NewUnstartedServer(e.proxy)
	secure.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	key := must.Get(x509.MarshalPKCS8PrivateKey(secure.TLS.Certificates[0].PrivateKey))(t)
	good := consul.Settings{
		Address: secure.URL, CAFile: mustPEM(t, "CERTIFICATE", secure.Certificate().Raw),
		CertFile: mustPEM(t, "CERTIFICATE", secure.Certificate().Raw), KeyFile: mustPEM(t, "PRIVATE KEY", key),
	}
	bySSL, named, noCertificate, noAuthority, otherName, unchecked := good, good, good, good, good, good
	bySSL.Address, bySSL.SSL = strings.TrimPrefix(secure.URL, "https://"), true
	named.TLSServerName = "example.com"
	noCertificate.CertFile, noCertificate.KeyFile = "", ""
	noAuthority.CAFile = ""
	otherName.TLSServerName = "other.test"
	unchecked.CAFile, unchecked.SkipVerify = "", true

	dir := must.ShortDir(t)
	local := httptest.NewUnstartedServer(e.proxy)
	local.Listener.Close()
	local.Listener = must.Get(net.Listen("unix", filepath.Join(dir, "s")))(t)
	local.Start()
	t.Cleanup(local.Close)
	for name, tc := range map[string]struct {
		settings consul.Settings
		refusal  string // empty where the agent is reached
	}{
		"https":              {good, ""},
		"https by a setting": {bySSL, ""},
		"name":               {named, ""},
		"unchecked":          {unchecked, ""},
		"unix":               {consul.Settings{Address: "unix://" + filepath.Join(dir, "s")}, ""},
		"no certificate":     {noCertificate, "certificate required"},
		"no authority":       {noAuthority, "unknown authority"},
		"other name":         {otherName, "not other.test"},
		"no socket":          {consul.Settings{Address: "unix://" + filepath.Join(dir, "none")}, "no such file"},
		"http":               {consul.Settings{Address: bySSL.Address}, "HTTP request to an HTTPS server"},
	} {
		var log polltest.Log
		p := e.run(func(c *consul.Config) {
			c.Settings, c.Logger = tc.settings, slog.New(slog.NewTextHandler(&log, nil))
		})
		in := instance(p, "s", nil)
		must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{in}))
		if tc.refusal == "" {
			e.until(name+": registered", func() bool { return e.service(in.ID) != nil })
			continue
		}
		e.until(name+": the log says why not", func() bool { return log.Has(tc.refusal) })
		if e.service(in.ID) != nil {
			t.Errorf("%s: it is registered", name)
		}
	}
}

package consul_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestSettingsFromEnv are those of the official client's variables, and flags come before them.
func TestSettingsFromEnv(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"CONSUL_HTTP_ADDR": "h:1", "CONSUL_HTTP_TOKEN_FILE": "/t", "CONSUL_NAMESPACE": "n", "CONSUL_PARTITION": "p",
		"CONSUL_CACERT": "/ca", "CONSUL_CAPATH": "/cas",
		"CONSUL_CLIENT_CERT": "/c", "CONSUL_CLIENT_KEY": "/k", "CONSUL_TLS_SERVER_NAME": "s", "CONSUL_HTTP_SSL": "true",
		"CONSUL_HTTP_SSL_VERIFY": "false",
		"CONSUL_HTTP_TOKEN":      "secret", "CONSUL_HTTP_AUTH": "u:p",
	}
	getenv := func(name string) string { return env[name] }
	want := consul.Settings{Address: "h:1", TokenFile: "/t", Namespace: "n", Partition: "p", CAFile: "/ca", CAPath: "/cas",
		CertFile: "/c", KeyFile: "/k", TLSServerName: "s", SSL: true, SkipVerify: true}
	got, err := consul.FromEnv(getenv)
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got := (consul.Settings{Address: "f:2", Namespace: "m"}).Over(got); got.Address != "f:2" || got.Namespace != "m" ||
		got.Partition != "p" || !got.SSL {
		t.Errorf("%+v", got)
	}
	secrets := consul.SecretsFromEnv(getenv)
	if secrets.Token != "secret" || secrets.Auth != "u:p" ||
		strings.Contains(fmt.Sprintf("%v %+v %#v", secrets, secrets, secrets), "secret") {
		t.Errorf("%v", secrets)
	}
	env["CONSUL_HTTP_SSL"] = "maybe"
	same.Says(t, nil, `CONSUL_HTTP_SSL is "maybe"`, same.Err(consul.FromEnv(getenv)))
}

// TestAddresses that there can be, and that there can't.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"127.0.0.1:8500": "", "localhost:8500": "", "[::1]:8500": "", "http://h:1/prefix": "", "https://h": "",
		"unix:///run/consul.sock": "",
		"tcp://h:1":               "it must be HOST:PORT", "http://": "it must be HOST:PORT",
		"unix://consul.sock":  "absolute path",
		"http://u:hush@h:1":   "CONSUL_HTTP_AUTH",
		"http://h:1/?token=x": "no query", "h:port": "it must be HOST:PORT",
	} {
		err := consul.Settings{Address: address}.Check()
		if (err == nil) != (want == "") || err != nil &&
			(!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	same.Fails(t, (consul.Settings{Address: "h:1", CertFile: "c"}).Check(), "a certificate without a key")
	must.OK(t, (consul.Settings{}).Check())
}

// TestFilesAreTried before anything starts.
func TestFilesAreTried(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, long, empty := filepath.Join(dir, "good"), filepath.Join(dir, "long"), filepath.Join(dir, "empty")
	must.OK(t, os.WriteFile(good, []byte("x"), 0o600))
	must.OK(t, os.WriteFile(long, make([]byte, 5000), 0o600))
	must.OK(t, os.WriteFile(empty, []byte("\n"), 0o600))
	for name, s := range map[string]consul.Settings{
		"":          {Address: "h:1", TokenFile: good},
		"none":      {Address: "h:1", TokenFile: filepath.Join(dir, "none")},
		"long":      {Address: "h:1", TokenFile: long},
		"empty":     {Address: "h:1", TokenFile: empty},
		"authority": {Address: "h:1", CAFile: good},
		"key":       {Address: "h:1", CertFile: good, KeyFile: good},
	} {
		if err := s.TryFiles(); (err == nil) != (name == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNamespace: every request and every registration name the group's.
func TestNamespace(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	if e.stand == nil {
		t.Skip("the agent of CONSUL_HTTP_ADDR may have no namespaces")
	}
	e.stand.RequireNamespace("team", "east")
	p := e.run(func(c *consul.Config) {
		c.Settings.Namespace, c.Namespace, c.Settings.Partition = "default", "team", "east"
	})
	in := instance(p, "s", nil)
	must.OK(t, p.Register(t.Context(), []*interfaces.ServiceInstance{in}))
	p.Feed(in.ID, 0, interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: "fine"})
	e.until("fed", func() bool { return e.stand.Status(consul.CheckID(in.ID, in.Service.Checks[0])) == "passing" })
	must.OK(t, p.Deregister(t.Context(), []string{in.ID}))
	same.As(t, "", e.stand.Status(consul.CheckID(in.ID, in.Service.Checks[0])), "deregistered, and its check is")
	e.stand.RequireNamespace("", "")
}

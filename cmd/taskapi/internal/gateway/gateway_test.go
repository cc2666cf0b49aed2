package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/identity"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

const allocID = "b29ec205-df7a-42ea-b4f8-b27f54486789"

var environment = map[string]string{
	"NOMAD_ALLOC_ID": allocID, "NOMAD_REGION": "global", "NOMAD_NAMESPACE": "default", "NOMAD_JOB_ID": "job/periodic-1",
	"NOMAD_JOB_PARENT_ID": "job", "NOMAD_GROUP_NAME": "group", "NOMAD_TOKEN": "own",
}

// agentAt answers on a socket with the ring's keys, and with "answered" otherwise, but never without a token.
func agentAt(t *testing.T, path string, ring *identity.Keyring) {
	t.Helper()
	l := must.Get(net.Listen("unix", path))(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys := r.URL.Path == "/.well-known/jwks.json"
		switch token := r.Header.Get("X-Nomad-Token"); {
		case token == "", keys != (token == "own"):
			w.WriteHeader(http.StatusUnauthorized)
		case keys:
			_, _ = w.Write(ring.JWKS())
		default:
			_, _ = io.WriteString(w, "answered")
		}
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
}

// TestGateway serves two tasks, with a policy and an audit log.
func TestGateway(t *testing.T) {
	dir := must.ShortDir(t)
	ring := must.Get(identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(dir, "keyring")}))(t)
	agentAt(t, filepath.Join(dir, "api.sock"), ring)
	settings := agent.DefaultSettings()
	settings.Policy, settings.AuditLog = filepath.Join(dir, "policy.hcl"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(settings.Policy, []byte(`preset = "nomad"
namespace "default" {
  variables {
    path "shared/*" { capabilities = ["write"] }
    path "exact/a" { capabilities = ["write"] }
  }
}
task "web" { capabilities = ["read-job"] }`), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := new(polltest.Log)
	ctx, cancel := context.WithCancel(t.Context())
	started, ended := make(chan []string, 1), make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Upstream: "unix://" + filepath.Join(dir, "api.sock"), Dir: filepath.Join(dir, "sockets"),
			Tasks: []string{"web", "worker"}, Settings: settings, Getenv: func(k string) string { return environment[k] },
			Logger:  slog.New(slog.NewTextHandler(logs, nil)),
			Started: func(paths []string) error { started <- paths; return nil },
		})
	}()
	var paths []string
	select {
	case paths = <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		filepath.Join(dir, "sockets"): 0o755, filepath.Dir(paths[0]): 0o755, paths[0]: 0o666, paths[1]: 0o666,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	token := must.Get(ring.Sign(identity.Claims{
		Subject:  identity.Subject("global", "default", "job", "group", "web", "default"),
		Audience: []string{identity.DefaultAudience}, IssuedAt: time.Now().Unix(), NotBefore: time.Now().Unix(),
		ExpiresAt: time.Now().Add(time.Hour).Unix(), Namespace: "default", JobID: "job", AllocationID: allocID, Task: "web",
	}))(t)
	do := func(method, path, body string) int {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", paths[0])
			},
		}}
		r, _ := http.NewRequestWithContext(t.Context(), method, "http://x"+path, strings.NewReader(body))
		r.Header.Set("X-Nomad-Token", token)
		response := must.Get(client.Do(r))(t)
		response.Body.Close()
		return response.StatusCode
	}
	until(t, "the keys are there", func() bool { return do("GET", "/v1/services", "") == 200 })
	for request, want := range map[string]int{
		"GET /v1/var/nomad/jobs/job":                                 200, // what Nomad's implicit policy gives
		"GET /v1/var/nomad/jobs/job/group/web":                       200,
		"GET /v1/var/nomad%2Fjobs%2Fjob":                             200,
		"GET /v1/var/nomad/jobs/other":                               403,
		"GET /v1/var/nomad/jobs/job?namespace=a":                     403,
		"PUT /v1/var/nomad/jobs/job":                                 403,
		"PUT /v1/var/exact/%61":                                      200,
		"PUT /v1/var/exact/%2561":                                    403, // the variable exact/%61
		"GET /v1/job/job":                                            200, // what the task's block gives
		"GET /v1/job/job%2Fperiodic-1":                               200,
		"GET /v1/job/job%2Faction":                                   403, // a command, as Nomad reads it
		"GET /v1/job/a%2Fb%2Fc%2Fd%2Fe%2Ff%2Fg%2Fh%2Fi%2Fj":          200,
		"GET /v1/job/a%2Fb%2Fc%2Fd%2Fe%2Ff%2Fg%2Fh%2Fi%2Fj%2Faction": 403,
		"GET /v1/job/a%2F%2Fb%2Faction":                              403, // a job whose ID has an empty part
		"GET /v1/job/%2E%2E%2Fb%2Faction":                            403,
		"GET /v1/job/job%2Fversions%2Fa%2Ftag":                       403, // a route that taskapi lacks, as Nomad reads it
		"GET /v1/client/allocation/" + allocID + "/stats":            200,
		"PUT /v1/acl/bootstrap":                                      403, // a route that taskapi lacks
		"GET /v1/nothing":                                            403,
		"GET /v1/regions":                                            200,
		"PUT /v1/search":                                             200,
		"DELETE /v1/client/allocation/" + allocID:                    403,
		"GET /v1/client/allocation/" + allocID + "/exec":             403,
	} {
		method, path, _ := strings.Cut(request, " ")
		same.As(t, want, do(method, path, ""), request)
	}
	for body, want := range map[string]int{ // its namespace counts for Nomad
		`{"Items":{"a":"b"}}`:                                    200,
		`{"Namespace":"default","Items":{"a":"b"}}`:              200,
		`{"Namespace":"other","Items":{"a":"b"}}`:                403,
		`{"Namespace":"default","namespace":"other"}`:            403,
		`{"Items":{"a":"` + strings.Repeat("b", 512<<10) + `"}}`: 413,
	} {
		same.As(t, want, do("PUT", "/v1/var/shared/a", body), "a variable ", body[:min(len(body), 60)])
	}
	do("GET", "/v1/client/allocation/"+allocID+"/exec?task=web&command=%5B%22ls%22,%22secret%22%5D", "")
	do("GET", "/v1/client/allocation/"+allocID+"%2Fexec?task=web&command=%5B%22ps%22%5D", "")
	do("PUT", "/v1/var/shared/locked?lock-acquire", `{"Namespace":"other"}`)
	do("PUT", "/v1/var/shared/locked?lock-renew", `{}`)
	for _, want := range []string{
		`"program":"web: ls","outcome":"denied"`, `"program":"web: ps","outcome":"denied"`,
		`"path":"/v1/var/shared/locked","namespace":"other","lock":"acquire","outcome":"denied"`,
		`"path":"/v1/var/shared/locked","namespace":"default","lock":"renew","outcome":"done"`,
	} {
		until(t, "the audit log has "+want, func() bool { // a moment after the answer
			return bytes.Contains(must.Get(os.ReadFile(settings.AuditLog))(t), []byte(want))
		})
	}
	if log, err := os.ReadFile(settings.AuditLog); err != nil ||
		!bytes.Contains(log, []byte(`"path":"/v1/acl/bootstrap"`)) || bytes.Contains(log, []byte(token)) ||
		bytes.Contains(log, []byte("secret")) {
		t.Errorf("the audit log: %v\n%s", err, log)
	}
	// Another task puts a socket of its own in the place of this one.
	must.OK(t, os.Rename(paths[0], paths[0]+".old"))
	until(t, "the log says it", func() bool { return logs.Has("another task may take the tokens") && logs.Has(paths[0]) })
	must.OK(t, os.Rename(paths[0]+".old", paths[0]))
	until(t, "the log says that it is back", func() bool { return logs.Has("in its place again") })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(paths[1]); !os.IsNotExist(err) {
		t.Errorf("a socket is left: %v", err)
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	if !polltest.Until(done) {
		t.Fatalf("in vain: %s", what)
	}
}

// TestBadInput: each mistake has an error that names it.
func TestBadInput(t *testing.T) {
	dir := must.ShortDir(t)
	open := filepath.Join(dir, "open")
	must.OK(t, errors.Join(os.Mkdir(open, 0o777), os.Chmod(open, 0o777)))
	link := filepath.Join(dir, "file")
	must.OK(t, os.WriteFile(link, nil, 0o600))
	elsewhere := filepath.Join(dir, "elsewhere")
	theirs := filepath.Join(dir, "theirs")
	must.OK(t, errors.Join(os.Mkdir(elsewhere, 0o755), os.Symlink(elsewhere, theirs)))
	links := "a symbolic link that uid 1234 made"
	if os.Geteuid() != 0 { // no other user's link can be made
		links = "it started"
	} else if err := os.Lchown(theirs, 1234, 1234); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(c *Config, env map[string]string){
		links:                         func(c *Config, _ map[string]string) { c.Dir = filepath.Join(theirs, "sockets") },
		"no absolute path":            func(c *Config, _ map[string]string) { c.Upstream = "unix://api.sock" },
		"no address of an agent":      func(c *Config, _ map[string]string) { c.Upstream = "nomad:4646" },
		"example:4646\" has no TLS":   func(c *Config, _ map[string]string) { c.Upstream = "http://nomad.example:4646" },
		"127.0.0.1:4646\" has no TLS": func(c *Config, _ map[string]string) { c.Upstream = "http://127.0.0.1:4646" },
		"more than a host and a port": func(c *Config, _ map[string]string) { c.Upstream = "https://nomad.example:4646/v1" },
		"NOMAD_REGION is not set":     func(_ *Config, env map[string]string) { delete(env, "NOMAD_REGION") },
		"is no UUID":                  func(_ *Config, env map[string]string) { env["NOMAD_ALLOC_ID"] = "x" },
		"is no name of a task":        func(c *Config, _ map[string]string) { c.Tasks = []string{"../web"} },
		"named twice":                 func(c *Config, _ map[string]string) { c.Tasks = []string{"web", "web"} },
		"NOMAD_CACERT":                func(_ *Config, env map[string]string) { env["NOMAD_CACERT"] = "/nonexistent" },
		"NOMAD_CLIENT_CERT":           func(_ *Config, env map[string]string) { env["NOMAD_CLIENT_CERT"] = "/nonexistent" },
		"others may write to it":      func(c *Config, _ map[string]string) { c.Dir = open },
		"not a directory":             func(c *Config, _ map[string]string) { c.Dir = link },
		"no such file":                func(c *Config, _ map[string]string) { c.Dir = filepath.Join(dir, "none", "sockets") },
		"give a file, or one of":      func(c *Config, _ map[string]string) { c.Settings.Policy = "/nonexistent" },
	} {
		env := maps.Clone(environment)
		config := Config{
			Upstream: "unix:///nonexistent", Dir: filepath.Join(dir, "sockets"), Tasks: []string{"web"},
			Settings: agent.DefaultSettings(), Getenv: func(k string) string { return env[k] },
			Logger:  slog.New(slog.DiscardHandler),
			Started: func([]string) error { return errors.New("it started") },
		}
		change(&config, env)
		if err := Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	if made, err := os.ReadDir(elsewhere); err != nil || os.Geteuid() == 0 && len(made) > 0 {
		t.Errorf("behind another user's link: %v, %v", made, err)
	}
}

package authtest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/identity"
	"taskapi/identity/workload"
	"taskapi/internal/atomicfile"
)

// Task is one task of a Server, or the operator, with a socket of its own.
type Task struct {
	server *Server
	alloc  *allocation
	name   string // empty for the operator
	dir    string
	socket string
	tokens *workload.Tokens
	env    map[string]string // tokens of identities with env = true, as of the start
}

// start makes the task's directory with its token files, and answers on its socket.
func (t *Task) start(identities []*api.WorkloadIdentity) error {
	for _, dir := range []string{"secrets", "local"} {
		if err := os.MkdirAll(filepath.Join(t.dir, dir), 0o700); err != nil {
			return err
		}
	}
	spec := &api.Task{Name: t.name}
	if t.name != "" { // only Token makes the operator's tokens
		spec.Identity, spec.Identities = &api.WorkloadIdentity{Env: true, File: true}, identities
	}
	t.tokens = t.alloc.manager.Task(spec)
	var err error
	t.env, err = t.tokens.Start(workload.Host{Dir: t.dir, WriteFile: t.writeFile, Process: process{t}})
	if err != nil {
		return err
	}
	link := filepath.Join(t.dir, "secrets", "api.sock") // which may be too long for a socket of its own
	if err := os.Symlink(t.socket, link); err != nil {
		return err
	}
	return t.server.serve(t.alloc, t.socket, auth.Owner{AllocationID: t.alloc.id, Task: t.name, UID: uint32(os.Getuid())})
}

// writeFile replaces a file at a path within the task's directory.
func (t *Task) writeFile(path string, data []byte) error {
	path = filepath.Join(t.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	err = atomicfile.Replace(int(dir.Fd()), path, data, atomicfile.Options{Mode: 0o600})
	return errors.Join(err, dir.Close())
}

// process records what a change_mode does, since there is no process.
type process struct{ task *Task }

func (p process) Restart(ctx context.Context, _ string) error {
	return p.task.alloc.RestartTask(ctx, p.task.name)
}

func (p process) Signal(ctx context.Context, name string) error {
	return p.task.alloc.Signal(ctx, p.task.name, name)
}

// Name returns the task's name; it is empty for the operator.
func (t *Task) Name() string { return t.name }

// AllocationID returns the ID of the task's allocation.
func (t *Task) AllocationID() string { return t.alloc.id }

// Socket returns the path of the task's socket.
func (t *Task) Socket() string { return t.socket }

// Address returns the address of the task's socket, as it is in NOMAD_UNIX_ADDR.
func (t *Task) Address() string { return "unix://" + t.socket }

// TokenFile returns the path of the file with the token of the task's default identity. The token is replaced as in
// production: see Server.Advance and Server.RemoveKey.
func (t *Task) TokenFile() string { return filepath.Join(t.dir, "secrets", "nomad_token") }

// Env returns the task's environment for exec.Cmd, sorted: NOMAD_TOKEN, NOMAD_UNIX_ADDR, NOMAD_SECRETS_DIR with
// nomad_token and api.sock in it, and the names of task and job. Like a process's environment, its tokens are those of
// the start.
func (t *Task) Env() []string {
	dir := filepath.Dir(t.dir)
	env := []string{
		"NOMAD_UNIX_ADDR=" + t.Address(),
		"NOMAD_SECRETS_DIR=" + filepath.Join(t.dir, "secrets"), "NOMAD_TASK_DIR=" + filepath.Join(t.dir, "local"),
		"NOMAD_ALLOC_DIR=" + filepath.Join(dir, "alloc"), "NOMAD_ALLOC_ID=" + t.alloc.id, "NOMAD_TASK_NAME=" + t.name,
		"NOMAD_GROUP_NAME=" + t.alloc.claims.TaskGroup,
		"NOMAD_JOB_ID=" + t.alloc.claims.JobID, "NOMAD_JOB_NAME=" + t.alloc.claims.JobID,
		"NOMAD_NAMESPACE=" + t.alloc.claims.Namespace, "NOMAD_REGION=" + region, "NOMAD_DC=" + datacenter,
	}
	for name, token := range t.env {
		env = append(env, name+"="+token)
	}
	slices.Sort(env)
	return env
}

// Client returns a client of Nomad's SDK on the task's socket with a token, good or bad, or without one for "". It is
// closed with the test.
func (t *Task) Client(token string) *api.Client {
	t.server.tb.Helper()
	client, err := api.NewClient(&api.Config{Address: t.Address(), SecretID: token})
	t.server.check(err, "")
	t.server.tb.Cleanup(client.Close)
	return client
}

// HTTP returns an HTTP client without a token. All of its requests go to the task's socket, whatever host a URL names.
func (t *Task) HTTP() *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", t.socket)
	}}
	t.server.tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// End ends the task's allocation: its tasks' tokens are refused from now on, as terminal_allocation.
func (t *Task) End() { t.alloc.end() }

// TokenOption changes what a token claims.
type TokenOption func(g *badtokens.Good)

// WithTTL sets a token's life in whole seconds; the default is an hour. With a negative life it has expired.
func WithTTL(ttl time.Duration) TokenOption {
	return func(g *badtokens.Good) {
		g.Claims.ExpiresAt = g.Now.Add(ttl).Unix()
		if ttl < 0 { // it was issued before
			g.Claims.IssuedAt, g.Claims.NotBefore = g.Claims.ExpiresAt-1, g.Claims.ExpiresAt-1
		}
	}
}

// WithAudience sets a token's audience.
func WithAudience(names ...string) TokenOption {
	return func(g *badtokens.Good) { g.Claims.Audience = names }
}

// WithIdentity is for the identity of another name than "default".
func WithIdentity(name string) TokenOption {
	return func(g *badtokens.Good) {
		g.Claims.Subject = g.Claims.Subject[:strings.LastIndexByte(g.Claims.Subject, ':')+1] + name
	}
}

// WithClaim sets a claim of any name to a value that JSON can express. It replaces a claim of the same name.
func WithClaim(name string, value any) TokenOption {
	return func(g *badtokens.Good) {
		if g.Extra == nil {
			g.Extra = map[string]any{}
		}
		g.Extra[name] = value
	}
}

// good returns what a token of the task claims now.
func (t *Task) good(options []TokenOption) badtokens.Good {
	now, c := t.server.Now(), t.alloc.claims
	claims := identity.Claims{
		ID: uuid.NewString(), Issuer: t.server.config.issuer, Audience: t.server.config.audience,
		Subject:  identity.Subject(c.Region, c.Namespace, c.JobID, c.TaskGroup, t.name, identity.DefaultName),
		IssuedAt: now.Unix(), NotBefore: now.Unix(), ExpiresAt: now.Add(time.Hour).Unix(),
		Namespace: c.Namespace, JobID: c.JobID, AllocationID: t.alloc.id, Task: t.name, Life: c.Life,
	}
	if t.name == "" {
		claims.Role = identity.RoleOperator
		claims.Subject = identity.Subject(c.Region, c.Namespace, c.JobID, c.TaskGroup, "", string(identity.RoleOperator))
	}
	unnamed := claims
	unnamed.ID = ""
	if t.server.revoked.Revoked(&unnamed) { // tokens of this second are revoked, so date this one as the manager does
		claims.IssuedAt++
		claims.NotBefore++
	}
	key := badtokens.NewKey(t.server.ring.Signer())
	g := badtokens.Good{Key: key, Now: now, Claims: claims, OtherKeyID: t.server.foreign.ID}
	for _, o := range options {
		o(&g)
	}
	return g
}

// Token returns a new token of the task, good unless an option makes it bad.
func (t *Task) Token(options ...TokenOption) string { return t.good(options).Token() }

// Bad returns a token of the task that is bad in one way, by the name of the kind; badtokens.All lists the kinds. The
// server refuses it for the kind's reason.
func (t *Task) Bad(kind string, options ...TokenOption) string {
	t.server.tb.Helper()
	found, ok := badtokens.Find(kind)
	if !ok {
		t.server.tb.Fatalf("authtest: there is no bad token %q: badtokens.All has the names%s", kind, similar(kind))
	}
	g := t.good(options)
	if found.Foreign {
		g.Key, g.Claims.Issuer = t.server.foreign, another
	}
	token, err := found.Token(g)
	t.server.check(err, "bad token %q: ", kind)
	return token
}

// similar returns the names of kinds that have a part in common with another name.
func similar(kind string) string {
	var names []string
	for _, k := range badtokens.All() {
		for part := range strings.SplitSeq(kind, "-") {
			if len(part) > 2 && strings.Contains(k.Name, part) && !slices.Contains(names, k.Name) {
				names = append(names, k.Name)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", among them " + strings.Join(names[:min(len(names), 8)], ", ")
}

// Package gateway joins the sockets of an allocation's tasks with the Task API of a Nomad cluster, for an allocation
// that Nomad runs. It runs as one more task of the allocation, and authenticates the callers by the cluster's own keys.
package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/handlers"
	"taskapi/handlers/upstream"
	"taskapi/identity"
	"taskapi/internal/safedir"
	"taskapi/socket"
)

// Config says what a gateway needs. All fields are required.
type Config struct {
	Upstream string   // the agent's address
	Dir      string   // of the sockets
	Tasks    []string // that get one each
	Settings agent.Settings
	Getenv   func(string) string // the environment that Nomad gives a task
	Logger   *slog.Logger
	Started  func(paths []string) error // is called when the sockets listen
}

// lookEvery is how often the gateway looks whether its sockets still are where clients look for them.
const lookEvery = time.Second

// Run serves until ctx ends. Errors that are the caller's fault are agent.InvalidError.
func Run(ctx context.Context, config Config) error {
	address, err := upstream.ParseAddress(config.Upstream)
	if err != nil {
		return agent.InvalidError{Err: fmt.Errorf("--upstream %w", err)}
	}
	id, alloc, err := allocation(config.Getenv)
	if err == nil {
		err = checkTasks(config.Tasks)
	}
	if err != nil {
		return agent.InvalidError{Err: err}
	}
	trust, err := trusted(config.Getenv)
	if err != nil {
		return agent.InvalidError{Err: err}
	}
	policy, limits, audit, err := config.Settings.OpenRights(config.Logger)
	if err != nil {
		return err
	}
	if audit != nil {
		defer audit.Close()
	}
	nomad := upstream.NewAgent(address, trust, ownToken(config.Getenv))
	keys := upstream.NewKeys(nomad)
	only := agent.OnlyAllocation{ID: id, Alloc: alloc}
	authenticator, err := authenticator(config, keys, only, policy, limits, audit, nomad.Token())
	if err != nil {
		return err
	}
	serving := upstream.Config{
		Agent: nomad, Authenticator: authenticator, Region: alloc.Region, PeerOf: agent.PeerOf, Logger: config.Logger,
		Auditor: agent.AuditorOf(audit), AuditReads: config.Settings.AuditReads, Limits: limits,
		Detail: handlers.Detail,
		Ready:  func() bool { return keys.Keys() != nil },
	}
	if config.Settings.Policy != "" {
		serving.Allowed = func(r *http.Request, namespace string, p *auth.Principal) *auth.Denial {
			return allowed(authenticator, r, namespace, p)
		}
	}
	return serve(ctx, config, upstream.New(serving), keys, id, limits)
}

// allocation returns the ID of the allocation that this process is a task of, and what its tokens must claim.
func allocation(getenv func(string) string) (id string, alloc *auth.Allocation, err error) {
	alloc = &auth.Allocation{
		Region: getenv("NOMAD_REGION"), Namespace: getenv("NOMAD_NAMESPACE"),
		JobID:     cmp.Or(getenv("NOMAD_JOB_PARENT_ID"), getenv("NOMAD_JOB_ID")),
		TaskGroup: getenv("NOMAD_GROUP_NAME"),
	}
	id = getenv("NOMAD_ALLOC_ID")
	for name, value := range map[string]string{
		"NOMAD_ALLOC_ID": id, "NOMAD_REGION": alloc.Region, "NOMAD_NAMESPACE": alloc.Namespace, "NOMAD_JOB_ID": alloc.JobID,
		"NOMAD_GROUP_NAME": alloc.TaskGroup,
	} {
		if value == "" {
			return "", nil, fmt.Errorf("%s is not set: run the gateway as a task of a Nomad job, which has it", name)
		}
	}
	if err := uuid.Validate(id); err != nil {
		return "", nil, fmt.Errorf("NOMAD_ALLOC_ID: %q is no UUID", id)
	}
	return id, alloc, nil
}

// checkTasks refuses names that can't be a directory's.
func checkTasks(tasks []string) error {
	for i, task := range tasks {
		switch {
		case task == "" || task == "." || task == ".." || strings.ContainsAny(task, "/\x00"):
			return fmt.Errorf("%q is no name of a task", task)
		case slices.Contains(tasks[:i], task):
			return fmt.Errorf("the task %s is named twice", task)
		}
	}
	return nil
}

// trusted returns the certificates for https that the environment names, as for every client of Nomad; nil for the
// machine's.
func trusted(getenv func(string) string) (*tls.Config, error) {
	ca, cert, name := getenv("NOMAD_CACERT"), getenv("NOMAD_CLIENT_CERT"), getenv("NOMAD_TLS_SERVER_NAME")
	if ca == "" && cert == "" && name == "" {
		return nil, nil
	}
	trust := &tls.Config{ServerName: name}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("NOMAD_CACERT: %w", err)
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("NOMAD_CACERT: %s has no certificate in PEM", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, getenv("NOMAD_CLIENT_KEY"))
		if err != nil {
			return nil, fmt.Errorf("NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY: %w", err)
		}
		trust.Certificates = []tls.Certificate{pair}
	}
	return trust, nil
}

// ownToken returns how the gateway's own token is found: in its file, which Nomad renews, or in its environment.
func ownToken(getenv func(string) string) func() string {
	file := ""
	if secrets := getenv("NOMAD_SECRETS_DIR"); secrets != "" {
		file = filepath.Join(secrets, "nomad_token")
	}
	return func() string {
		if token, err := os.ReadFile(file); err == nil && len(token) <= identity.MaxTokenLength {
			return strings.TrimSpace(string(token))
		}
		return getenv("NOMAD_TOKEN")
	}
}

// authenticator returns the authenticator for all sockets. own is the gateway's own token, whose issuer is that of the
// tasks' tokens.
func authenticator(
	config Config, keys *upstream.Keys, alloc agent.OnlyAllocation, policy *auth.Policy, limits limitset.Set,
	audit *auth.AuditLog, own string,
) (*auth.Authenticator, error) {
	issuer := identity.Issuer{Keys: keys, NoExpiry: true}
	if token, err := identity.Check(own); err == nil {
		issuer.Name = token.Claims.Issuer
	}
	verifier, err := identity.NewVerifier(identity.VerifierConfig{
		Local: new(identity.KeySet), Foreign: []identity.Issuer{issuer}, Audiences: config.Settings.Audience(),
	})
	if err != nil {
		return nil, err
	}
	return auth.NewAuthenticator(auth.Config{
		Verifier: verifier, Allocations: alloc, Logger: config.Logger, Policy: policy, Auditor: agent.AuditorOf(audit),
		Limits: auth.Limits{Set: limits}, Keys: []identity.KeySource{keys},
	})
}

// allowed decides by the policy whether a caller may send a request. Nomad reads the decoded path of a variable. An
// encoded slash in another path may be a part of a name, or divide names, as Nomad reads it: the caller needs the
// rights of both. The policy gives no right to a path that has no route here in one of the two readings. namespace is
// that of the variable.
func allowed(a *auth.Authenticator, r *http.Request, namespace string, p *auth.Principal) *auth.Denial {
	sent, decoded := handlers.Readings(r.URL)
	anyOf := handlers.Needs(r.Method, sent)
	if name, ok := strings.CutPrefix(r.URL.Path, "/v1/var/"); ok {
		right := cmp.Or(map[string]auth.VariableRight{
			http.MethodGet: auth.VariableRead, http.MethodHead: auth.VariableRead, http.MethodDelete: auth.VariableDestroy,
		}[r.Method], auth.VariableWrite)
		if !p.MayVariable(namespace, name, right) {
			anyOf = auth.CapabilitySet(auth.OperatorOnly) // no policy gives it
		}
	}
	if denial := a.Authorize(p, anyOf); denial != nil {
		return denial
	}
	return a.Authorize(p, handlers.Needs(r.Method, decoded))
}

// serve opens the sockets and answers on them until ctx ends or one of them fails.
func serve(
	ctx context.Context, config Config, server *upstream.Server, keys *upstream.Keys, id string, limits limitset.Set,
) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var listeners []*socket.Listener
	defer func() {
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
		}
	}()
	budget := socket.NewBudget(limits.AllConnections)
	var paths []string
	for _, task := range config.Tasks {
		path := filepath.Join(config.Dir, task, "api.sock")
		l, err := listen(path, config, budget, limits)
		if err != nil {
			return agent.InvalidError{Err: fmt.Errorf("socket of the task %s: %w", task, err)}
		}
		listeners, paths = append(listeners, l), append(paths, path)
	}
	running.Go(func() { keys.Run(ctx, config.Logger) })
	failed := make(chan error, len(listeners))
	for i, l := range listeners {
		owner := auth.Owner{AllocationID: id, Task: config.Tasks[i], AnyUser: true}
		running.Go(func() {
			if err := server.Serve(ctx, l, owner); err != nil {
				failed <- err
			}
		})
	}
	running.Go(func() { watch(ctx, paths, config.Logger) })
	if err := config.Started(paths); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// listen opens a task's socket. Its directories belong to this user, and nobody else may write to them. Which user the
// task is in its container, nobody knows here, so every user may connect: the token alone decides.
func listen(path string, config Config, budget *socket.Budget, limits limitset.Set) (*socket.Listener, error) {
	for _, dir := range []string{config.Dir, filepath.Dir(path)} {
		if err := ownDir(dir); err != nil {
			return nil, err
		}
	}
	return socket.Listen(socket.Config{
		Path: path, Mode: 0o666, UID: -1, GID: -1, MaxConns: limits.Connections,
		Share:   budget.Share(max(1, min(limits.Connections, limits.AllConnections)/max(1, len(config.Tasks)))),
		Refusal: []byte(handlers.Refusal), Logger: config.Logger,
	})
}

// ownDir makes a directory that everybody may enter and only this user may change, or takes the one that is there.
func ownDir(path string) error {
	parent, err := safedir.Open(filepath.Dir(path)) // no link of another user leads to another place
	if err != nil {
		return err
	}
	defer parent.Close()
	made := unix.Mkdirat(parent.FD, filepath.Base(path), 0o755)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return fmt.Errorf("make directory %s: %w", path, made)
	}
	dir, err := safedir.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.CheckSafe(os.Geteuid()); err != nil || dir.OthersWrite() {
		return fmt.Errorf("%s belongs to another user, or others may write to it: another task may have put it there; "+
			"remove it, or give --dir another directory", path)
	}
	if made == nil { // whatever the umask
		return os.Chmod(dir.Proc(), 0o755)
	}
	return nil
}

// watch logs when the file at a path of ours is another one: a task that may write to the directory above has put a
// socket there, and would get the tokens that clients send.
func watch(ctx context.Context, paths []string, logger *slog.Logger) {
	ours, lost := make([]os.FileInfo, len(paths)), make([]bool, len(paths))
	for i, path := range paths {
		ours[i], _ = os.Stat(path) // it is ours, if somebody has just replaced it, from now on
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, path := range paths {
			now, err := os.Stat(path)
			was := lost[i]
			switch lost[i] = err != nil || !os.SameFile(now, ours[i]); {
			case lost[i] && !was:
				logger.Error("the socket of a task is gone or another file: another task may take the tokens that are sent there",
					"path", path)
			case was && !lost[i]:
				logger.Info("the socket of a task is in its place again", "path", path)
			}
		}
	}
}

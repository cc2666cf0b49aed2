package vault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocfs"
	"taskapi/internal/filewatch"
	"taskapi/internal/ptr"
	"taskapi/internal/tokenfile"
	"taskapi/internal/wake"
)

// The files of the token. The first is Nomad's. In the second, taskapi finds the token again after a restart.
const (
	secretsPath = "secrets/vault_token"
	privatePath = "private/vault_token"
)

// IdentityName is the name of the identity with which a task logs in.
const IdentityName = "vault_default"

// identityTTL is the life of that identity's token if the job file gives none. The token is used at once.
const identityTTL = time.Hour

// Config configures a Hook.
type Config struct {
	Settings Settings
	// Sign issues a token of an identity of the task; nil without a key ring.
	Sign   func(*api.WorkloadIdentity) (string, error)
	Logger *slog.Logger
}

// Hook gives one task a token of Vault, before its templates are rendered, and replaces it in time.
type Hook struct {
	cfg    Config
	logger *slog.Logger
	client client
	begun  wake.Signal // a process has started
	doubt  wake.Signal // a request was denied, perhaps since the token is no longer good

	mu      sync.Mutex // guards the fields below
	pending bool       // Keep was called with pending
	block   *api.Vault
	req     *interfaces.TaskPrestartRequest // without its Alloc
	token   string
	handed  string        // the token that the process knows
	changed chan struct{} // closed and replaced when there is another token
	ending  bool          // the task's process is being stopped
	cancel  context.CancelFunc
	tried   chan struct{} // closed after the first attempt to get a token
	done    chan struct{} // closed when the goroutine has ended; nil before a first start
}

var (
	_ interfaces.TaskPrestartHook  = (*Hook)(nil)
	_ interfaces.TaskPoststartHook = (*Hook)(nil)
	_ interfaces.TaskPreKillHook   = (*Hook)(nil)
	_ interfaces.TaskStopHook      = (*Hook)(nil)
	_ interfaces.ShutdownHook      = (*Hook)(nil)
)

// New returns the hook of a task with a vault block.
func New(cfg Config, task string, block *api.Vault) *Hook {
	namespace := cmp.Or(ptr.Deref(block.Namespace), cfg.Settings.Namespace)
	return &Hook{cfg: cfg, logger: cfg.Logger.With("task", task), block: block, begun: wake.New(), doubt: wake.New(),
		changed: make(chan struct{}), client: client{settings: cfg.Settings, namespace: namespace}}
}

// Name returns the name of the hook.
func (h *Hook) Name() string { return "vault" }

// Prestart waits until there is a token. A process that runs already goes on without a token.
func (h *Hook) Prestart(
	ctx context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	h.mu.Lock()
	if h.done == nil {
		kept := *req
		kept.Alloc = nil // it would keep a version of the allocation alive
		h.req, h.ending = &kept, false
		h.tried, h.done = make(chan struct{}), make(chan struct{})
		running, cancel := context.WithCancel(context.Background())
		h.cancel = cancel
		go h.run(running, h.tried, h.done)
	}
	tried := h.tried
	h.mu.Unlock()
	for {
		h.mu.Lock()
		token, changed, done := h.token, h.changed, h.done
		if token != "" && !req.Restored {
			h.handed = token
			h.settleLocked()
		}
		h.mu.Unlock()
		if token != "" {
			return &interfaces.TaskPrestartResponse{Env: h.env(token)}, nil
		}
		if !req.Restored {
			tried = nil
		}
		select {
		case <-changed:
		case <-tried:
			return nil, nil
		case <-done: // it has failed the task, which is about to be killed
			<-ctx.Done()
			return nil, ctx.Err()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// env returns Nomad's variables of a token.
func (h *Hook) env(token string) map[string]string {
	if h.block.Env != nil && !*h.block.Env {
		return nil
	}
	env := map[string]string{"VAULT_TOKEN": token}
	if h.client.namespace != "" {
		env["VAULT_NAMESPACE"] = h.client.namespace
	}
	return env
}

// Poststart makes change_mode act on a process that has started with an earlier token.
func (h *Hook) Poststart(context.Context, *interfaces.TaskPoststartRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ending = false
	h.begun.Send()
	return nil
}

// PreKilling stops change_mode from acting on a process that is ending.
func (h *Hook) PreKilling(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ending = true
	return nil
}

// revokeTimeout bounds how long the end of a task waits for Vault.
const revokeTimeout = 2 * time.Second

// Stop revokes the token of a login. The task needs neither the token nor the secrets that were leased with the token.
func (h *Hook) Stop(ctx context.Context) error {
	token := h.end(ctx)
	if token != "" && h.cfg.Settings.TokenFile == "" {
		limited, cancel := context.WithTimeout(ctx, revokeTimeout)
		defer cancel()
		if _, err := h.client.do(limited, token, http.MethodPut, "auth/token/revoke-self", struct{}{}); err != nil {
			h.logger.Warn("the token of Vault was not revoked; it is good until it expires", "error", err)
		}
	}
	h.client.close()
	return nil
}

// Shutdown ends the renewal for a task that runs on.
func (h *Hook) Shutdown() {
	h.end(context.Background())
	h.client.close()
}

// end ends the goroutine, and returns the token.
func (h *Hook) end(ctx context.Context) string {
	h.mu.Lock()
	cancel, done := h.cancel, h.done
	h.mu.Unlock()
	if done == nil {
		return ""
	}
	cancel()
	select {
	case <-done:
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	token := h.token
	h.token, h.handed, h.done = "", "", nil
	return token
}

// current returns the token, empty while there is none, and a channel that is closed when there is another token.
func (h *Hook) current() (token string, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.token, h.changed
}

// grant is a token with its lease.
type grant struct {
	token     string
	lease     time.Duration // for which the token is good; zero for ever
	whole     time.Duration // the first lease of the token
	renewable bool
}

// pending returns the values that Keep gets while a change of the token may not have reached the task.
func pending() map[string]string { return map[string]string{"change": "pending"} }

// run gets a token, keeps it good, and replaces it.
func (h *Hook) run(ctx context.Context, tried, done chan struct{}) {
	defer close(done)
	attempted := sync.OnceFunc(func() { close(tried) })
	defer attempted()
	g, found := h.recover(ctx, attempted)
	for fresh := !h.req.Restored; ctx.Err() == nil; fresh = false {
		if !found {
			var err error
			if g, err = h.obtain(ctx, fresh, attempted); err != nil {
				if ctx.Err() == nil {
					h.req.Lifecycle.Fail("Vault: failed to derive vault token: " + err.Error())
				}
				return
			}
		}
		found = false
		h.replace(ctx, g.token, fresh)
		h.keepGood(ctx, g)
	}
}

// recover returns the token that an earlier process of taskapi has got for a running task, once Vault has confirmed the
// token; false if the token is no longer good.
func (h *Hook) recover(ctx context.Context, attempted func()) (grant, bool) {
	if !h.req.Restored {
		return grant{}, false
	}
	text, err := allocfs.ReadFile(h.req.Dir.Dir, privatePath, tokenfile.Max, interfaces.Reader{
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}) //nolint:gosec // a user's number
	token := string(text)
	if err != nil || !tokenfile.Valid(token) {
		return grant{}, false
	}
	h.mu.Lock()
	h.publishLocked(token) // templates may use it meanwhile
	if h.pending = maps.Equal(h.req.Kept, pending()); !h.pending {
		h.handed = token
	}
	h.mu.Unlock()
	attempted()
	if h.cfg.Settings.TokenFile != "" {
		return grant{}, false
	}
	for retry := (wake.Backoff{}); ctx.Err() == nil; {
		a, err := h.client.do(ctx, token, http.MethodGet, "auth/token/lookup-self", nil)
		if err == nil && a != nil {
			renewable, _ := a.Data["renewable"].(bool)
			return grant{token, seconds(a.Data["ttl"]), seconds(a.Data["creation_ttl"]), renewable}, true
		}
		if isRefusal(err) {
			break
		}
		h.wait(ctx, retry.Pause())
	}
	return grant{}, false
}

// obtain returns a new token. It tries again until it has one, unless final is true and Vault refuses. Errors: Vault's
// refusal, ctx's.
func (h *Hook) obtain(ctx context.Context, final bool, attempted func()) (grant, error) {
	for retry := (wake.Backoff{}); ; {
		g, err := h.login(ctx)
		switch {
		case ctx.Err() != nil:
			return g, ctx.Err()
		case err == nil:
			return g, nil
		case final && isRefusal(err):
			return g, err
		}
		if retry.Failures == 0 {
			h.logger.Warn("the task gets no token of Vault; taskapi tries again until it does", "error", err)
			h.req.Lifecycle.Event("Vault", "Waiting for a token of Vault: "+err.Error())
		}
		attempted()
		h.wait(ctx, retry.Pause())
	}
}

// login gets a token: from the token file, or by the task's identity.
func (h *Hook) login(ctx context.Context) (grant, error) {
	s := h.cfg.Settings
	if s.TokenFile != "" {
		token, err := readToken(s.TokenFile)
		return grant{token: token}, err
	}
	if h.cfg.Sign == nil {
		return grant{}, errors.New("there is no key ring to sign the task's identity with; give vault.token_file")
	}
	wi := &api.WorkloadIdentity{Name: IdentityName}
	for _, own := range h.req.Task.Identities {
		if own != nil && own.Name == IdentityName {
			copied := *own
			wi = &copied
		}
	}
	if len(wi.Audience) == 0 {
		wi.Audience = []string{cmp.Or(s.Audience, DefaultAudience)}
	}
	wi.TTL = cmp.Or(wi.TTL, identityTTL)
	jwt, err := h.cfg.Sign(wi)
	if err != nil {
		return grant{}, err
	}
	body := map[string]string{"jwt": jwt}
	if role := cmp.Or(h.block.Role, s.Role); role != "" {
		body["role"] = role
	}
	a, err := h.client.do(ctx, "", http.MethodPut, "auth/"+s.authPath()+"/login", body)
	if err != nil {
		return grant{}, fmt.Errorf("login at auth/%s: %w", s.authPath(), err)
	}
	if a == nil || a.Auth == nil || !tokenfile.Valid(a.Auth.ClientToken) {
		return grant{}, fmt.Errorf("login at auth/%s: it gives no token", s.authPath())
	}
	lease := time.Duration(a.Auth.LeaseDuration) * time.Second
	return grant{a.Auth.ClientToken, lease, lease, a.Auth.Renewable}, nil
}

// replace writes a token into the task's files, and makes change_mode act. A fresh task waits for its first token, so
// change_mode does not act.
func (h *Hook) replace(ctx context.Context, token string, fresh bool) {
	h.mu.Lock()
	written := h.token == token && !h.pending // an earlier process may have written one file of two
	h.mu.Unlock()
	for retry := (wake.Backoff{}); !written; {
		err := h.write(token, fresh)
		if written = err == nil; written {
			break
		}
		if ctx.Err() != nil {
			return
		}
		h.logger.Warn("the token of Vault was not written; taskapi tries again until it is", "error", err)
		h.wait(ctx, retry.Pause())
	}
	if !fresh {
		h.act(ctx)
	}
}

// settleLocked saves that the process knows the token.
func (h *Hook) settleLocked() {
	if h.pending {
		h.pending = false
		h.req.Keep(nil)
	}
}

// write writes a token into the task's files, and publishes it. Unless the task is fresh, write first saves that
// change_mode has not acted: this process may be killed before.
func (h *Hook) write(token string, fresh bool) error {
	h.mu.Lock() // no process starts with one token in its environment and the other in its file
	defer h.mu.Unlock()
	if !fresh {
		h.pending = true
		h.req.Keep(pending())
		if err := h.req.Sync(); err != nil {
			return err
		}
	}
	own := &interfaces.Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())} //nolint:gosec // a user's number
	err := h.req.WriteFile(interfaces.File{Path: privatePath, Data: []byte(token), Owner: own})
	if err == nil && !ptr.Deref(h.block.DisableFile) {
		err = h.req.WriteFile(interfaces.File{Path: secretsPath, Data: []byte(token)})
	}
	if err == nil {
		h.publishLocked(token)
	}
	return err
}

func (h *Hook) publishLocked(token string) {
	if h.token != token {
		h.token = token
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// act does what change_mode says, unless the process knows the token already or is ending.
func (h *Hook) act(ctx context.Context) {
	h.mu.Lock()
	known, ending := h.handed == h.token, h.ending
	if known {
		h.settleLocked()
	}
	h.mu.Unlock()
	if known || ending {
		return
	}
	var err error
	switch cmp.Or(ptr.Deref(h.block.ChangeMode), "restart") {
	case "restart":
		err = h.req.Lifecycle.Restart(ctx, "Vault: new Vault token acquired")
	case "signal":
		if err = h.req.Lifecycle.Signal(ctx, cmp.Or(ptr.Deref(h.block.ChangeSignal), "SIGHUP")); err == nil {
			h.noteHanded()
		}
	default:
		h.noteHanded()
	}
	// A task without a process gets the token at its start, or by Poststart.
	if err != nil && ctx.Err() == nil && !errors.Is(err, interfaces.ErrTaskNotRunning) &&
		!errors.Is(err, interfaces.ErrTerminal) {
		h.logger.Warn("the task does not know of its new token of Vault", "error", err)
	}
}

// noteHanded notes that the process knows the token.
func (h *Hook) noteHanded() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handed = h.token
	h.settleLocked()
}

// wait waits for a time, or until the token is in doubt, and reports whether the token is. Meanwhile it acts on a
// process that has started with an earlier token.
func (h *Hook) wait(ctx context.Context, d time.Duration) (doubted bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-h.begun:
			h.act(ctx)
			continue
		case <-h.doubt:
			return true
		case <-timer.C:
		case <-ctx.Done():
		}
		return false
	}
}

const (
	forever = 100 * 365 * 24 * time.Hour
	// leastPart: a renewal that grants less than this part of the first lease means that the end of all renewals is near.
	leastPart = 3
)

// keepGood renews a token, and returns when another token is needed.
func (h *Hook) keepGood(ctx context.Context, g grant) {
	if h.cfg.Settings.TokenFile != "" {
		h.watchFile(ctx, g.token)
		return
	}
	for ptr.Deref(h.block.AllowTokenExpiration) && ctx.Err() == nil {
		h.wait(ctx, forever)
	}
	expires := time.Now().Add(g.lease)
	pause := g.good()
	for retry := (wake.Backoff{}); ctx.Err() == nil; {
		doubted := h.wait(ctx, pause)
		if ctx.Err() != nil || !doubted && !g.renewable && retry.Failures == 0 {
			return
		}
		var a *answer
		var err error
		if !g.renewable {
			a, err = h.client.do(ctx, g.token, http.MethodGet, "auth/token/lookup-self", nil)
		} else {
			a, err = h.client.do(ctx, g.token, http.MethodPut, "auth/token/renew-self", struct{}{})
		}
		switch {
		case isRefusal(err):
			h.logger.Info("the token of Vault is no longer good; the task gets another", "error", err)
			return
		case err != nil:
			if retry.Failures == 0 {
				h.logger.Warn("the token of Vault is not renewed; taskapi tries again until it is", "error", err)
			}
			if g.lease > 0 && time.Now().After(expires) {
				return
			}
			pause = retry.Pause()
			continue
		case a != nil && a.Auth != nil:
			g.lease, g.renewable = time.Duration(a.Auth.LeaseDuration)*time.Second, a.Auth.Renewable
			expires = time.Now().Add(g.lease)
			if g.lease < g.whole/leastPart {
				return
			}
		}
		retry.Reset()
		pause = g.good()
	}
}

// good returns the time after which the token is renewed.
func (g grant) good() time.Duration {
	if g.lease == 0 {
		return forever
	}
	return wake.Jitter(g.lease / 2)
}

// lookPause bounds how late a new token is found in a file that can't be watched.
const lookPause = 30 * time.Second

// watchFile waits until the file has another token.
func (h *Hook) watchFile(ctx context.Context, token string) {
	var watcher filewatch.Watcher
	watch, _ := watcher.DirAt(filepath.Dir(h.cfg.Settings.TokenFile)) // nil for a directory that can't be watched
	defer watch.Close()
	for ctx.Err() == nil {
		if now, err := readToken(h.cfg.Settings.TokenFile); err == nil && now != token {
			return
		}
		timer := time.NewTimer(lookPause)
		select {
		case <-watch.Changed():
		case <-timer.C:
		case <-h.begun:
			h.act(ctx)
		case <-h.doubt:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/identity"
)

// tokenName is the file of a task's default identity.
const tokenName = "nomad_token"

// renewRetry is the pause after a renewal that failed: the old token is good for as long again as it has been.
const renewRetry = time.Second

// issued is a new token, and what is remembered of it.
type issued struct {
	token string
	note
}

// note is what is remembered of a token: enough to leave it alone when another taskapi takes the task over, and nothing that is secret.
type note struct {
	at, expires time.Time // to the second, as in the token
	key         string    // its ID
	audience    string    // all of them, joined by spaces; empty when that was not noted
}

func (n note) String() string {
	return fmt.Sprintf("%d %d %s %q", n.at.Unix(), n.expires.Unix(), n.key, n.audience)
}

// readNote reads what String wrote.
func readNote(s string) (n note, ok bool) {
	var at, expires int64
	read, _ := fmt.Sscanf(s, "%d %d %s %q", &at, &expires, &n.key, &n.audience)
	n.at, n.expires = time.Unix(at, 0), time.Unix(expires, 0)
	return n, read >= 3 // an older taskapi notes no audience
}

// wallet is one task's identities: it issues their tokens, and renews those with a ttl when half of it is over, as Nomad does, and files
// also without one. Both tokens are valid while they overlap.
type wallet struct {
	identities []*api.WorkloadIdentity
	issue      func(*api.WorkloadIdentity) (issued, error)
	good       func(*api.WorkloadIdentity, note) bool // whether the token that was noted is still one that would be issued
	logger     *slog.Logger

	mu        sync.Mutex // guards the fields below
	writeFile func(path string, data []byte) error
	lifecycle interfaces.TaskLifecycle // of the latest start; nil before the first
	keep      func(map[string]string)
	notes     map[string]note      // by identity
	due       map[string]time.Time // by identity: when it is to be renewed; absent when it is not
	kick      chan struct{}        // the dates have changed; capacity 1
}

// newWallet makes the wallet of a task.
func newWallet(task *api.Task, issue func(*api.WorkloadIdentity) (issued, error), good func(*api.WorkloadIdentity, note) bool,
	logger *slog.Logger,
) *wallet {
	return &wallet{
		identities: workloadIdentities(task),
		issue:      issue,
		good:       good,
		logger:     logger.With("task", task.Name),
		notes:      map[string]note{},
		due:        map[string]time.Time{},
		kick:       make(chan struct{}, 1),
	}
}

// fill issues every identity for a start of the task, writes those that are files and gives those that are variables. A task that is
// taken over keeps the tokens that it has, as far as they are good.
func (w *wallet) fill(req *interfaces.TaskPrestartRequest) (map[string]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()                                                       // held over writing files: a renewal must not come between an old token and a new one
	w.writeFile, w.lifecycle, w.keep = req.WriteFile, req.Lifecycle, req.Keep // the rest of the request would keep the allocation alive
	defer w.wake()
	put := w.startLocked
	if req.Restored {
		w.resumeLocked(req)
		put = w.copyLocked
	}
	env := map[string]string{}
	for _, wi := range w.identities {
		token, err := put(req, wi)
		if err != nil {
			return nil, err
		}
		if wi.Env {
			env[tokenVariable(wi.Name)] = token
		}
	}
	w.keepLocked()
	return env, nil
}

// startLocked issues an identity for a start. On a full disk the file of an earlier start will do for as long as it is good.
func (w *wallet) startLocked(req *interfaces.TaskPrestartRequest, wi *api.WorkloadIdentity) (string, error) {
	token, err := w.putLocked(wi)
	if err == nil || token == "" || !w.stillGood(wi, w.notes[wi.Name]) || !fileThere(req.Dir.Dir, tokenPath(wi)) {
		return token, err
	}
	w.logger.Warn("identity not written; the task starts with the file that is there", "identity", wi.Name, "error", err)
	w.due[wi.Name] = time.Now().Add(renewRetry)
	return token, nil
}

// stillGood reports that a token has not lapsed, and is as a new one would be.
func (w *wallet) stillGood(wi *api.WorkloadIdentity, n note) bool {
	return time.Now().Before(n.expires) && w.good(wi, n)
}

// copyLocked issues a token for programs that are run beside a task that was taken over: its own token, in its environment, is nowhere
// else.
func (w *wallet) copyLocked(_ *interfaces.TaskPrestartRequest, wi *api.WorkloadIdentity) (string, error) {
	if !wi.Env {
		return "", nil
	}
	i, err := w.issue(wi)
	return i.token, err
}

// resumeLocked sets the dates of tokens that an earlier taskapi has issued. What is not good any more is due at once.
func (w *wallet) resumeLocked(req *interfaces.TaskPrestartRequest) {
	for _, wi := range w.identities {
		n, known := readNote(req.Kept[wi.Name])
		if known {
			w.notes[wi.Name] = n
		}
		switch {
		case !renewable(wi):
		case known && !w.stillGood(wi, n), wi.File && !known, wi.File && !fileThere(req.Dir.Dir, tokenPath(wi)):
			w.due[wi.Name] = time.Now()
		case renewedInTime(wi) && known:
			w.due[wi.Name] = n.at.Add(life(wi, n) / 2)
		case renewedInTime(wi): // nobody knows how old it is; at worst it is renewed late
			w.due[wi.Name] = time.Now().Add(wi.TTL / 2)
		}
	}
}

// fileThere reports that the task's directory has a file at a path. The task may have put anything anywhere in it.
func fileThere(dir, path string) bool {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close()
	info, err := root.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() > 0
}

// renewable reports that a new token can reach the task while it lives, or by a restart.
func renewable(wi *api.WorkloadIdentity) bool { return wi.File || wi.ChangeMode == "restart" }

// renewedInTime reports that a token is to be renewed in time: it has a ttl of its own, or it can be done without anybody's noticing.
func renewedInTime(wi *api.WorkloadIdentity) bool { return wi.TTL > 0 || wi.File }

// life is how long a token is good from its issue.
func life(wi *api.WorkloadIdentity, n note) time.Duration {
	if wi.TTL > 0 {
		return wi.TTL
	}
	return n.expires.Sub(n.at)
}

// putLocked issues one identity, writes its file if it has one, and sets the date of its renewal. When only the file can't be written,
// the error comes with the token.
func (w *wallet) putLocked(wi *api.WorkloadIdentity) (string, error) {
	i, err := w.issue(wi)
	if err != nil {
		return "", err
	}
	if wi.File {
		if err := w.writeFile(tokenPath(wi), []byte(i.token)); err != nil {
			return i.token, fmt.Errorf("write identity %q: %w", wi.Name, err)
		}
	}
	w.notes[wi.Name] = i.note
	if renewedInTime(wi) && renewable(wi) {
		w.due[wi.Name] = time.Now().Add(life(wi, i.note) / 2)
	}
	return i.token, nil
}

// keepLocked has the notes outlive this process.
func (w *wallet) keepLocked() {
	kept := make(map[string]string, len(w.notes))
	for name, n := range w.notes {
		kept[name] = n.String()
	}
	w.keep(kept)
}

// replaceUntrusted makes every identity due whose token was signed by a key that is trusted no longer. A token in the
// environment of a process stays there until that is restarted, which is said.
func (w *wallet) replaceUntrusted(trusted func(key string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lifecycle == nil {
		return // not started yet
	}
	for _, wi := range w.identities {
		n, known := w.notes[wi.Name]
		if known && trusted(n.key) {
			continue
		}
		if renewable(wi) {
			w.due[wi.Name] = time.Now()
		}
		if wi.Env && known && wi.ChangeMode != "restart" {
			w.logger.Warn("the key that signed an identity is removed, and the identity is in the task's environment: it is refused until the task is restarted",
				"identity", wi.Name)
		}
	}
	w.wake()
}

func (w *wallet) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run renews identities until ctx ends.
func (w *wallet) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if next, ok := w.next(); ok {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
		case <-timer.C:
			for _, wi := range w.renewDue() {
				w.announce(ctx, wi)
			}
		}
	}
}

// next is the earliest date of a renewal.
func (w *wallet) next() (earliest time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.due {
		if !ok || t.Before(earliest) {
			earliest, ok = t, true
		}
	}
	return earliest, ok
}

// renewDue renews what is due and gives the identities that were.
func (w *wallet) renewDue() []*api.WorkloadIdentity {
	w.mu.Lock()
	defer w.mu.Unlock()
	var renewed []*api.WorkloadIdentity
	for _, wi := range w.identities {
		if due, ok := w.due[wi.Name]; !ok || time.Now().Before(due) {
			continue
		}
		delete(w.due, wi.Name)
		if _, err := w.putLocked(wi); err != nil {
			w.logger.Warn("identity not renewed; it is tried again", "identity", wi.Name, "error", err)
			w.due[wi.Name] = time.Now().Add(renewRetry)
			continue
		}
		renewed = append(renewed, wi)
	}
	if renewed != nil {
		w.keepLocked()
	}
	return renewed
}

// announce tells the task of a renewed identity in the way that its change_mode asks for. A task that does not run needs no telling:
// it finds the new token when it starts.
func (w *wallet) announce(ctx context.Context, wi *api.WorkloadIdentity) {
	w.mu.Lock()
	life := w.lifecycle
	w.mu.Unlock()
	var err error
	switch wi.ChangeMode {
	case "signal":
		err = life.Signal(ctx, wi.ChangeSignal)
	case "restart":
		err = life.Restart(ctx, fmt.Sprintf("Identity %q was renewed", wi.Name))
	}
	if err != nil {
		w.logger.Debug("task not told of its renewed identity", "identity", wi.Name, "change_mode", wi.ChangeMode, "error", err)
	}
}

// workloadIdentities are a task's identities, the default one first. Every task has that.
func workloadIdentities(task *api.Task) []*api.WorkloadIdentity {
	first := &api.WorkloadIdentity{}
	if task.Identity != nil {
		copied := *task.Identity
		first = &copied
	}
	first.Name = identity.DefaultName
	return append([]*api.WorkloadIdentity{first}, task.Identities...)
}

// tokenVariable is the environment variable of an identity that has env = true.
func tokenVariable(name string) string {
	if name == identity.DefaultName {
		return "NOMAD_TOKEN"
	}
	return "NOMAD_TOKEN_" + name
}

// tokenPath is the file of an identity that has file = true, relative to the task's directory.
func tokenPath(wi *api.WorkloadIdentity) string {
	switch {
	case wi.Filepath != "":
		return wi.Filepath
	case wi.Name == identity.DefaultName:
		return filepath.Join("secrets", tokenName)
	}
	return filepath.Join("secrets", "nomad_"+wi.Name+".jwt")
}

// Package artifacts fetches the artifact blocks of a task before it starts. It promises that each artifact is fetched
// once while the job has it, whatever ends meanwhile, and that neither events nor errors have the values of headers and
// options. Another process fetches (package fetch), as the task's user.
package artifacts

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/artifacts/fetch"
	"taskapi/allocrunner/artifacts/source"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
)

// Settings say how artifacts are fetched on a machine.
type Settings struct {
	fetch.Limits

	Environment []string // names of variables that git and HTTP get, such as https_proxy
	FileDirs    []string // directories from which artifacts may come; absolute
}

// DefaultSettings returns Nomad's settings, with smaller sizes, because one machine has to hold all fetched files.
func DefaultSettings() Settings {
	return Settings{Limits: fetch.Limits{
		HTTPTimeout: 30 * time.Minute, GitTimeout: 30 * time.Minute, HgTimeout: 30 * time.Minute,
		Download: 10 << 30, Unpacked: 10 << 30, Files: 4096,
	}}
}

// Hook fetches the artifacts of one task.
type Hook struct {
	settings Settings
	logger   *slog.Logger
}

var _ interfaces.TaskPrestartHook = (*Hook)(nil)

// New returns the hook of a task, which an update may give artifacts. It comes after all hooks that add to the task's
// environment, which artifacts can refer to, and before the hook of templates, which may come from artifacts.
func New(settings Settings, logger *slog.Logger, task string) *Hook {
	return &Hook{settings, logger.With("task", task)}
}

// Name returns the name of the hook.
func (*Hook) Name() string { return "artifacts" }

// downloading is the message of the event, as Nomad has it.
const downloading = "Client is downloading artifacts"

// grace is what a process may take beyond its own time limits.
const grace = time.Minute

// Prestart fetches the artifacts that are not there yet. It forgets those that the job no longer has before it fetches
// others in their place: if the job has them again, they are fetched again.
func (h *Hook) Prestart(
	ctx context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	if req.Restored {
		return nil, nil
	}
	fetched := map[string]string{}
	r := &round{hook: h, req: req, events: req.Lifecycle.Event}
	for _, a := range req.Task.Artifacts {
		if req.Kept[id(a)] != "" {
			fetched[id(a)] = "1"
			continue
		}
		if err := r.add(a); err != nil {
			return nil, failure(a, err.Error())
		}
	}
	if len(fetched) < len(req.Kept) {
		req.Keep(maps.Clone(fetched))
		if err := req.Sync(); err != nil {
			return nil, fmt.Errorf("artifacts of an earlier version can't be forgotten: %w", err)
		}
	}
	if len(r.artifacts) == 0 {
		return nil, nil
	}
	r.events(api.TaskDownloadingArtifacts, downloading)
	err := r.fetch(ctx, func(a *api.TaskArtifact) {
		fetched[id(a)] = "1"
		req.Keep(fetched)
	})
	return nil, err
}

// id tells artifacts of a task from one another, as their hash in Nomad does. Saved states have it.
func id(a *api.TaskArtifact) string {
	text, _ := json.Marshal(a) // of strings, maps of strings and flags
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// failure is the error of an artifact, for its event.
func failure(a *api.TaskArtifact, reason string) error {
	return &interfaces.HookError{Kind: api.TaskArtifactDownloadFailed, Detail: "download_error",
		Err: fmt.Errorf("failed to download artifact %q: %s", source.Shown(ptr.Deref(a.GetterSource)), reason)}
}

// round is one attempt to fetch the artifacts of a task that are missing.
type round struct {
	hook      *Hook
	req       *interfaces.TaskPrestartRequest
	events    func(kind, message string)
	artifacts []*api.TaskArtifact
	request   fetch.Request
	read      []string // directories
	progress  []*progress
}

// add adds an artifact, whose references it replaces.
func (r *round) add(a *api.TaskArtifact) error {
	env := r.req.Env
	replaced := func(values map[string]string) map[string]string {
		all := make(map[string]string, len(values))
		for k, v := range values {
			all[k] = env.ReplaceEnv(v)
		}
		return all
	}
	one := fetch.Artifact{
		Source: env.ReplaceEnv(ptr.Deref(a.GetterSource)), Options: replaced(a.GetterOptions),
		Headers: replaced(a.GetterHeaders), Insecure: ptr.Deref(a.GetterInsecure), Mode: ptr.Deref(a.GetterMode),
	}
	s, err := source.Parse(one.Source, one.Options)
	if err != nil {
		return err
	}
	if s.URL.Scheme == "ssh" && r.req.User.Home != "" { // ssh looks there for known hosts and keys
		r.read = append(r.read, filepath.Join(r.req.User.Home, ".ssh"))
	}
	var ok bool
	to := env.ReplaceEnv(cmp.Or(ptr.Deref(a.RelativeDest), "local/"))
	if one.Shared, one.Destination, ok = r.req.Dir.Destination(to); !ok {
		return errors.New("artifact destination path escapes alloc directory")
	}
	r.artifacts = append(r.artifacts, a)
	r.request.Artifacts = append(r.request.Artifacts, one)
	r.progress = append(r.progress, newProgress(s.String()))
	return nil
}

// fetch runs the process that fetches, and calls done for each artifact that is complete.
func (r *round) fetch(ctx context.Context, done func(*api.TaskArtifact)) error {
	h := r.hook
	r.request.Dirs = fetch.Dirs{Task: r.req.Dir.Dir, Shared: r.req.Dir.SharedDir}
	// Nobody reads the private directory over the API.
	r.request.Stage = filepath.Join(filepath.Base(r.req.Dir.PrivateDir), fetch.StagePrefix+rand.Text())
	r.request.FileDirs, r.request.Limits = h.settings.FileDirs, h.settings.Limits
	limit := max(h.settings.HTTPTimeout, h.settings.GitTimeout, h.settings.HgTimeout)
	limited, cancel := context.WithTimeout(ctx, limit*time.Duration(len(r.artifacts))+grace)
	defer cancel()
	if fetch.LandlockVersion() == 0 {
		h.logger.Warn("the kernel has no Landlock: the process that fetches artifacts may do what the task's user may")
	}
	ended := make([]bool, len(r.artifacts))
	var failed error
	process := fetch.Process{User: credential(r.req.User), Env: environment(h.settings.Environment),
		Read: append(r.read, certificates(h.settings.Environment)...)}
	err := fetch.Run(limited, process, r.request, func(report fetch.Report) {
		a := r.artifacts[report.Index]
		switch {
		case report.Done:
			ended[report.Index] = true
			h.logger.Info("artifact fetched", "source", r.progress[report.Index].source, "bytes", report.Bytes)
			done(a)
		case report.Error != "":
			ended[report.Index] = true
			if failed == nil {
				failed = failure(a, report.Error)
			}
		default:
			r.progress[report.Index].show(report, r.events)
		}
	})
	i := slices.Index(ended, false)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case failed != nil || i < 0:
		return failed
	case err == nil:
		err = errors.New("the process that fetches artifacts ended too early")
	}
	return failure(r.artifacts[i], err.Error())
}

// credential returns the user that fetches: the task's, or nil for ours.
func credential(user interfaces.User) *syscall.Credential {
	if os.Geteuid() != 0 || user.UID == 0 {
		return nil
	}
	return &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
}

// environment returns the environment of the process that fetches, with the variables of ours that a setting names.
func environment(names []string) []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/nonexistent"}
	for _, name := range names {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// certificates returns the files of certificates that a setting's variables name.
func certificates(names []string) []string {
	var files []string
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"} {
		if path := os.Getenv(name); slices.Contains(names, name) && filepath.IsAbs(path) {
			files = append(files, path)
		}
	}
	return files
}

// progress emits events about an artifact that takes long, each after twice the time of the one before, since a task
// keeps few events.
type progress struct {
	source string
	pause  time.Duration
	due    time.Time
}

// firstProgress is the time after which an artifact is said to take long.
const firstProgress = 10 * time.Second

func newProgress(source string) *progress {
	return &progress{source, firstProgress, time.Now().Add(firstProgress)}
}

func (p *progress) show(r fetch.Report, emit func(kind, message string)) {
	now := time.Now()
	if now.Before(p.due) || r.Bytes == 0 {
		return
	}
	p.pause *= 2
	p.due = now.Add(p.pause)
	of := ""
	if r.Total > 0 {
		of = " of " + shownSize(r.Total)
	}
	emit(api.TaskDownloadingArtifacts, fmt.Sprintf("%s: %s%s of %s", downloading, shownSize(r.Bytes), of, p.source))
}

package fetch

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"taskapi/allocrunner/artifacts/source"
)

// repository is a repository that git or hg fetches, with an empty home, so that no user's configuration counts.
type repository struct {
	*fetcher

	home, tree string
}

// gitConfig lets nothing of a repository be executed, and no program go on in the background.
const gitConfig = `[core]
	hooksPath = /dev/null
	fsmonitor = false
[gc]
	auto = 0
[maintenance]
	auto = false
[safe]
	directory = *
[protocol "ext"]
	allow = never
[advice]
	detachedHead = false
`

func (r *repository) clone(ctx context.Context) error {
	if r.source.Kind == source.Hg {
		return r.hg(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.Limits.GitTimeout,
		fmt.Errorf("it took longer than %v, which the setting artifact.git_timeout allows", r.Limits.GitTimeout))
	defer cancel()
	if err := os.WriteFile(filepath.Join(r.home, ".gitconfig"), []byte(gitConfig), 0o600); err != nil {
		return err
	}
	env, err := r.gitEnv()
	if err != nil {
		return err
	}
	git := func(args ...string) error { return r.run(ctx, env, "git", args...) }
	at, ref := r.address(), r.source.Ref
	var depth []string
	if r.source.Depth > 0 {
		depth = []string{"--depth", strconv.Itoa(r.source.Depth)}
	}
	commit := regexp.MustCompile(`^[0-9a-f]{7,64}$`).MatchString(ref)
	switch {
	case ref == "":
		err = git(append(append([]string{"clone", "--quiet"}, depth...), "--", at, r.tree)...)
	case commit && depth != nil: // which clone can't do
		err = git("init", "--quiet", "--", r.tree)
		if err == nil {
			err = git(append(append([]string{"-C", r.tree, "fetch", "--quiet"}, depth...), "--", at, ref)...)
		}
		if err == nil {
			err = git("-C", r.tree, "checkout", "--quiet", "FETCH_HEAD")
		}
	case depth != nil:
		err = git(append(append([]string{"clone", "--quiet"}, depth...), "--branch", ref, "--", at, r.tree)...)
	default:
		err = git("clone", "--quiet", "--", at, r.tree)
		if err == nil {
			err = git("-C", r.tree, "checkout", "--quiet", ref, "--")
		}
	}
	if err == nil {
		err = git(append([]string{"-C", r.tree, "submodule", "--quiet", "update", "--init", "--recursive"}, depth...)...)
	}
	return err
}

// address is the URL without a password, which other users could read in a program's arguments.
func (r *repository) address() string {
	u := *r.source.URL
	if u.Scheme == "http" || u.Scheme == "https" {
		u.User = nil
	}
	if u.Scheme == "file" {
		return (&url.URL{Scheme: "file", Path: u.Path}).String()
	}
	return u.String()
}

// gitEnv returns git's environment, which has the password and the key.
func (r *repository) gitEnv() ([]string, error) {
	s := r.source
	protocols := "https:http:ssh:git"
	if len(r.FileDirs) > 0 {
		protocols += ":file"
	}
	ssh := "ssh -o BatchMode=yes"
	if len(s.SSHKey) > 0 {
		key := filepath.Join(r.home, "key")
		if err := os.WriteFile(key, s.SSHKey, 0o600); err != nil {
			return nil, err
		}
		ssh += " -o IdentitiesOnly=yes -i '" + key + "'"
	}
	env := append(r.environment(), "GIT_ALLOW_PROTOCOL="+protocols, "GIT_TERMINAL_PROMPT=0", "GIT_SSH_COMMAND="+ssh)
	if user := s.URL.User; user != nil && (s.URL.Scheme == "https" || s.URL.Scheme == "http") {
		password, _ := user.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		env = append(env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http."+s.URL.Scheme+"://"+s.URL.Host+"/.extraHeader",
			"GIT_CONFIG_VALUE_0=Authorization: Basic "+basic)
	}
	return env, nil
}

// environment is this process's with the empty home.
func (r *repository) environment() []string {
	return append(os.Environ(), "HOME="+r.home, "XDG_CONFIG_HOME="+r.home)
}

func (r *repository) hg(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Limits.HgTimeout,
		fmt.Errorf("it took longer than %v, which the setting artifact.hg_timeout allows", r.Limits.HgTimeout))
	defer cancel()
	env := append(r.environment(), "HGPLAIN=1")
	u := *r.source.URL
	at := u.String()
	if u.Scheme == "file" {
		at = u.Path
	}
	args := []string{"clone", "--noninteractive", "--config", "ui.ssh=ssh -o BatchMode=yes"}
	if ref := r.source.Ref; ref != "" {
		args = append(args, "--updaterev="+ref)
	}
	return r.run(ctx, env, "hg", append(args, "--", at, r.tree)...)
}

// run runs a program. Errors: what it says, or the context's cause.
func (r *repository) run(ctx context.Context, env []string, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("the source needs %s, which is not installed in %s", name, os.Getenv("PATH"))
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = env, r.stage
	cmd.WaitDelay = time.Second
	var said words
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err == nil {
		return nil
	}
	if text := strings.TrimSpace(said.String()); text != "" {
		return fmt.Errorf("%s: %s", name, lastLines(text))
	}
	return fmt.Errorf("%s: %w", name, err)
}

// lastLines returns the end of what a program has said, on one line.
func lastLines(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[max(0, len(lines)-8):], "; ")
}

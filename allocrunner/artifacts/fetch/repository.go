package fetch

import (
	"context"
	"errors"
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
	"taskapi/internal/limited"
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

// clone fetches the repository to the tree.
func (r *repository) clone(ctx context.Context) error {
	if r.artifact.Mode == ModeFile && r.source.Sub == "" {
		return fmt.Errorf("mode %q wants a file, and the source is a repository: name a file of it after //", ModeFile)
	}
	if r.source.Kind == source.Hg {
		return r.hg(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.Limits.GitTimeout,
		fmt.Errorf("it took longer than %v, which the setting artifact.git_timeout allows", r.Limits.GitTimeout))
	defer cancel()
	if err := r.writeConfig(); err != nil {
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
	switch {
	case u.Scheme == "http" || u.Scheme == "https":
		u.User = nil
	case u.User != nil:
		u.User = url.User(u.User.Username())
	}
	if u.Scheme == "file" {
		return (&url.URL{Scheme: "file", Path: u.Path}).String()
	}
	return u.String()
}

// passwordConfig lets git find the password in the home, and give it to no program of the system that keeps passwords.
const passwordConfig = `[credential]
	helper =
	helper = store
`

// writeConfig writes git's configuration to the home, and the password, which git gives only to the source's host: a
// header of the configuration would go to every host to which that one redirects.
func (r *repository) writeConfig() error {
	config, u := gitConfig, r.source.URL
	if u.User != nil && (u.Scheme == "https" || u.Scheme == "http") {
		config += passwordConfig
		password, _ := u.User.Password()
		at := url.URL{Scheme: u.Scheme, Host: u.Host, User: url.UserPassword(u.User.Username(), password)}
		if err := os.WriteFile(filepath.Join(r.home, ".git-credentials"), []byte(at.String()+"\n"), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(r.home, ".gitconfig"), []byte(config), 0o600)
}

// writeHgConfig writes hg's configuration to the home, with the password, which hg gives only to the source's host.
func (r *repository) writeHgConfig() error {
	config, u := "", r.source.URL
	if u.User != nil && (u.Scheme == "https" || u.Scheme == "http") {
		password, _ := u.User.Password()
		if strings.ContainsAny(u.User.Username()+password, "\r\n") {
			return errors.New("the name or the password of the source has a line break")
		}
		config = fmt.Sprintf("[auth]\nsource.prefix = %s://%s\nsource.username = %s\nsource.password = %s\n", u.Scheme,
			u.Host, u.User.Username(), password)
	}
	return os.WriteFile(filepath.Join(r.home, ".hgrc"), []byte(config), 0o600)
}

// gitEnv returns git's environment, which names the key.
func (r *repository) gitEnv() ([]string, error) {
	s := r.source
	protocols := "https:http:ssh:git"
	if s.URL.Scheme == "https" { // a server could redirect to http
		protocols = "https:ssh:git"
	}
	if s.URL.Scheme == "file" { // a server's repository could name this machine's as its submodules
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
	return append(r.environment(), "GIT_ALLOW_PROTOCOL="+protocols, "GIT_TERMINAL_PROMPT=0", "GIT_SSH_COMMAND="+ssh), nil
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
	at := r.address()
	if u := r.source.URL; u.Scheme == "file" {
		at = u.Path
	}
	if err := r.writeHgConfig(); err != nil {
		return err
	}
	args := []string{"clone", "--noninteractive", "--config", "ui.ssh=ssh -o BatchMode=yes"}
	if ref := r.source.Ref; ref != "" {
		args = append(args, "--updaterev="+ref)
	}
	return r.run(ctx, env, "hg", append(args, "--", at, r.tree)...)
}

// run runs a program. Errors: its own words, or the context's cause.
func (r *repository) run(ctx context.Context, env []string, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("the source needs %s, which is not installed in %s", name, os.Getenv("PATH"))
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = env, r.stage
	cmd.WaitDelay = time.Second
	var said limited.Words
	cmd.Stdout, cmd.Stderr = &said, &said
	guard, err := startGuarded(cmd)
	if err != nil {
		return err
	}
	err = cmd.Wait()
	refused := guard.end()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err == nil {
		return nil
	}
	if refused != nil {
		return fmt.Errorf("%s: %w", name, refused)
	}
	if text := strings.TrimSpace(said.String()); text != "" {
		return fmt.Errorf("%s: %s", name, lastLines(text))
	}
	return fmt.Errorf("%s: %w", name, err)
}

// lastLines returns the last lines of a program's output as one line.
func lastLines(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[max(0, len(lines)-8):], "; ")
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"taskapi/allocrunner/state"
	"taskapi/socket/safedir"
)

// layout names what lies in a data directory. Others rely on these names.
type layout struct {
	dir       string
	isDefault bool // it is where this user's commands look without a flag
}

const (
	systemDataDir = "/var/lib/taskapi" // root's default
	dataDirEnv    = "TASKAPI_DATA_DIR" // stands for --data-dir
	dataDirUsage  = "where keys, state and allocations live (default $" + dataDirEnv + ", else " + systemDataDir + " as root, else $XDG_STATE_HOME/taskapi or ~/.local/state/taskapi)"
	apiSocketName = "api.sock"
)

// newLayout finds the data directory: the one given, that of the environment, or the default of this user. It is absolute, and without
// symbolic links: the processes of an allocation are known by its directory, whatever else it is called.
func newLayout(given string, w world) (layout, error) {
	usual := defaultDataDir(w)
	given = cmp.Or(given, w.getenv(dataDirEnv), usual)
	if given == "" {
		return layout{}, usage(errors.New("no data directory: give --data-dir, or set " + dataDirEnv + ", XDG_STATE_HOME or HOME"))
	}
	dir, err := filepath.Abs(given)
	if err != nil {
		return layout{}, fmt.Errorf("data directory %q: %w", given, err)
	}
	if !utf8.ValidString(dir) {
		return layout{}, usage(fmt.Errorf("data directory %q is not UTF-8, in which the state of allocations is written down: choose another with --data-dir", dir))
	}
	l := layout{dir: dir, isDefault: dir == usual && w.getenv(dataDirEnv) == ""}
	if l.dir, err = trusted(dir); err != nil {
		return layout{}, err
	}
	_, err = trusted(l.allocs())
	return l, err
}

// defaultDataDir is where this user's allocations live when nothing else is said, empty when nobody can tell.
func defaultDataDir(w world) string {
	switch {
	case os.Geteuid() == 0:
		return systemDataDir
	case w.getenv("XDG_STATE_HOME") != "":
		return filepath.Join(w.getenv("XDG_STATE_HOME"), "taskapi")
	case w.getenv("HOME") != "":
		return filepath.Join(w.getenv("HOME"), ".local/state/taskapi")
	}
	return ""
}

// trusted is a path without symbolic links in as much of it as is there. Errors: what is there can be changed by others.
func trusted(dir string) (string, error) {
	whole, err := safedir.Trust(dir)
	switch {
	case errors.Is(err, safedir.ErrUnsafe):
		return "", usage(fmt.Errorf("data directory: %w; or choose another --data-dir", err))
	case err != nil: // nothing in it can be had, which is said by those who try
		return resolved(dir), nil
	}
	return whole, nil
}

// resolved is a path without the symbolic links in as much of it as is there.
func resolved(path string) string {
	if whole, err := filepath.EvalSymlinks(path); err == nil {
		return whole
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(resolved(parent), filepath.Base(path))
}

func (l layout) keyring() string                 { return filepath.Join(l.dir, "keyring") }
func (l layout) allocs() string                  { return filepath.Join(l.dir, "allocs") }
func (l layout) alloc(id string) string          { return filepath.Join(l.allocs(), id) }
func (l layout) operatorSocket(id string) string { return filepath.Join(l.alloc(id), "operator.sock") }
func (l layout) operatorToken(id string) string  { return filepath.Join(l.alloc(id), "operator.token") }
func (l layout) state(id string) string          { return filepath.Join(l.alloc(id), state.FileName) }
func (l layout) taskSocket(id, task string) string {
	return filepath.Join(l.alloc(id), task, "secrets", apiSocketName)
}

// command is a command line about an allocation of this data directory, for people to copy: without --data-dir it may be about
// another one, where a run would begin anew.
func (l layout) command(verb string, args ...string) string {
	words := []string{"taskapi", verb}
	if !l.isDefault {
		words = append(words, "--data-dir", shellWord(l.dir))
	}
	return strings.Join(append(words, args...), " ")
}

// shellWord is a text as one word of a POSIX shell. In double quotes, since messages have commands in single ones.
func shellWord(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n\"'\\$`&|;<>()*?[]#~=%!{}") {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(s) + `"`
}

// make makes the data directory. Others may pass through it, to the directories of their tasks, and read none of it.
func (l layout) make() error {
	for _, dir := range []string{l.dir, l.allocs()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("data directory %s can't be made: %w; choose another with --data-dir", l.dir, unwrapPath(err))
		}
		if _, err := trusted(dir); err != nil { // somebody may have been faster to make it
			return err
		}
	}
	probe, err := os.CreateTemp(l.dir, ".writable-")
	if err != nil {
		return fmt.Errorf("data directory %s is not writable: %w; choose another with --data-dir", l.dir, unwrapPath(err))
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// unwrapPath leaves out the path that a message already names.
func unwrapPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

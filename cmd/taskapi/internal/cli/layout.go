package cli

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// layout is a data directory, and how commands about it are written.
type layout struct {
	datadir.Dir
	commands
	version string // of this program
}

const (
	systemDataDir = "/var/lib/taskapi" // root's default
	dataDirEnv    = "TASKAPI_DATA_DIR" // stands for --data-dir
	dataDirUsage  = "where keys, state and allocations live (default $" + dataDirEnv + ", else " + systemDataDir + " as root, else $XDG_STATE_HOME/taskapi or ~/.local/state/taskapi)"
)

// newLayout finds the data directory: the one given, that of the environment, or the default of this user.
func newLayout(given string, w Environment) (layout, error) {
	usual := defaultDataDir(w)
	given = cmp.Or(given, w.getenv(dataDirEnv), usual)
	if given == "" {
		return layout{}, usage(errors.New("no data directory: give --data-dir, or set " + dataDirEnv + ", XDG_STATE_HOME or HOME"))
	}
	dir, err := datadir.Open(given)
	if err != nil {
		return layout{}, layout{}.explain(err)
	}
	l := layout{Dir: dir, commands: commands{DataDir: string(dir)}, version: w.Version}
	if abs, err := filepath.Abs(given); err == nil && abs == usual && w.getenv(dataDirEnv) == "" {
		l.DataDir = ""
	}
	return l, nil
}

// defaultDataDir returns where this user's allocations live by default, empty when there is no such place.
func defaultDataDir(w Environment) string {
	if os.Geteuid() == 0 {
		return systemDataDir
	}
	return ownDataDir(w)
}

// homeDataDir is where a user's allocations live below their home, unless XDG_STATE_HOME says otherwise.
const homeDataDir = ".local/state/taskapi"

// ownDataDir returns the data directory that belongs to this user alone, empty when there is no place for one.
func ownDataDir(w Environment) string {
	switch {
	case w.getenv("XDG_STATE_HOME") != "":
		return filepath.Join(w.getenv("XDG_STATE_HOME"), "taskapi")
	case w.getenv("HOME") != "":
		return filepath.Join(w.getenv("HOME"), homeDataDir)
	}
	return ""
}

// explain adds to an error what its reader can do about it, and marks the caller's mistakes.
func (l layout) explain(err error) error {
	if _, ok := errors.AsType[*datadir.UnusableError](err); ok {
		return usage(fmt.Errorf("%w; or choose another --data-dir", err))
	}
	if e, ok := errors.AsType[*datadir.DamagedError](err); ok {
		return fmt.Errorf("%w; '%s' keeps what can be read of it", err, l.Command("state repair", e.ID))
	}
	if errors.Is(err, state.ErrNewer) {
		return fmt.Errorf("%w; use that taskapi or a newer one", err)
	}
	if e, ok := errors.AsType[*datadir.StateMissingError](err); ok {
		return fmt.Errorf("%w; '%s' kills them", err, l.Command("stop", e.ID))
	}
	if _, ok := errors.AsType[*datadir.StateRemovedError](err); ok {
		return usage(fmt.Errorf("%w: give another --alloc-id, or none; --force runs it again", err))
	}
	if _, ok := errors.AsType[*allocrunner.EndedError](err); ok {
		return usage(fmt.Errorf("%w: give another --alloc-id, or none; --force runs it again", err))
	}
	if _, ok := errors.AsType[*allocrunner.OtherJobError](err); ok {
		return usage(fmt.Errorf("%w: give another --alloc-id, or none", err))
	}
	if e, ok := errors.AsType[*allocrunner.StoppingError](err); ok {
		return usage(fmt.Errorf("%w; run '%s' to finish the stop", err, l.Command("stop", e.ID)))
	}
	if e, ok := errors.AsType[*interfaces.DestructiveError](err); ok {
		return usage(errDestructive(e.ID, e.Changes))
	}
	if _, ok := errors.AsType[*datadir.InvalidError](err); ok {
		return usage(err)
	}
	return err
}

// errDestructive refuses changes that need new processes.
func errDestructive(id string, changes []string) error {
	var lines []string
	for _, change := range changes {
		lines = append(lines, "  "+linewriter.OneLine(change))
	}
	return fmt.Errorf("allocation %s needs new processes for these changes:\n%s\n"+
		"--force stops it gracefully and runs it again; another --alloc-id leaves it alone", id, strings.Join(lines, "\n"))
}

// lock locks an allocation.
func (l layout) lock(id string, logger *slog.Logger) (*datadir.Lock, error) {
	lock, err := l.Lock(id, l.Store(l.version), logger)
	return lock, l.explain(err)
}

// make makes the data directory.
func (l layout) make() error {
	err := l.Make()
	if _, unusable := errors.AsType[*datadir.UnusableError](err); err != nil && !unusable {
		return fmt.Errorf("%w; choose another with --data-dir", err)
	}
	return l.explain(err)
}

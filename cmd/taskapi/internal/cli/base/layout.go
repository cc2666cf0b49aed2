package base

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/settings"
)

// Layout is a data directory. It also makes the command lines for it that messages show.
type Layout struct {
	datadir.Dir
	shown   string // the directory as a flag; empty if this user's commands look there without a flag
	version string // of this program
}

const (
	systemDataDir = "/var/lib/taskapi" // root's default
	DataDirEnv    = "TASKAPI_DATA_DIR" // stands for --data-dir
	dataDirUsage  = "`DIR` of keys, state and allocations (default $" + DataDirEnv + ", else root's or your own)"
)

// NewLayout finds the data directory: the one given, that of the environment, or the default of this user.
func NewLayout(given string, w Environment) (Layout, error) {
	usual := systemDataDir
	if os.Geteuid() != 0 {
		usual = ownDataDir(w)
	}
	given = cmp.Or(given, w.Getenv(DataDirEnv), usual)
	if given == "" {
		return Layout{}, Usagef("no data directory: give --data-dir, or set " + DataDirEnv + ", XDG_STATE_HOME or HOME")
	}
	dir, err := datadir.Open(given)
	if err != nil {
		return Layout{}, Layout{}.Explain(err)
	}
	l := Layout{Dir: dir, shown: string(dir), version: w.Version}
	if abs, err := filepath.Abs(given); err == nil && abs == usual && w.Getenv(DataDirEnv) == "" {
		l.shown = ""
	}
	return l, nil
}

// homeDataDir is a user's data directory below their home, unless XDG_STATE_HOME says otherwise.
const homeDataDir = ".local/state/taskapi"

// ownDataDir returns the data directory that belongs to this user alone, empty when there is no place for one.
func ownDataDir(w Environment) string {
	switch {
	case w.Getenv("XDG_STATE_HOME") != "":
		return filepath.Join(w.Getenv("XDG_STATE_HOME"), "taskapi")
	case w.Getenv("HOME") != "":
		return filepath.Join(w.Getenv("HOME"), homeDataDir)
	}
	return ""
}

// Explain adds to an error what the user can do, and marks the caller's mistakes.
func (l Layout) Explain(err error) error {
	if _, ok := errors.AsType[*datadir.UnusableError](err); ok {
		return Usagef("%w; or choose another --data-dir", err)
	}
	if e, ok := errors.AsType[*datadir.UnreadError](err); ok {
		without := "to begin without its data, move " + l.Alloc(e.ID) + " to another place"
		if e.Runs {
			without = fmt.Sprintf("'%s' kills the tasks", l.Command("stop", e.ID))
		}
		return fmt.Errorf("%s: %w; %s", e.What(), l.Explain(e.Err), without)
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
	if e, ok := errors.AsType[*datadir.StillRunningError](err); ok {
		return fmt.Errorf("%w: '%s' kills them", err, l.Command("stop", e.ID))
	}
	_, removed := errors.AsType[*datadir.StateRemovedError](err)
	if _, ended := errors.AsType[*allocrunner.EndedError](err); removed || ended {
		return Usagef("%w: give another --alloc-id, or none; --replace runs it again", err)
	}
	if _, ok := errors.AsType[*allocrunner.OtherJobError](err); ok {
		return Usagef("%w: give another --alloc-id, or none", err)
	}
	if e, ok := errors.AsType[*allocrunner.StoppingError](err); ok {
		return Usagef("%w; run '%s' to finish the stop", err, l.Command("stop", e.ID))
	}
	if e, ok := errors.AsType[*interfaces.DestructiveError](err); ok {
		var changes strings.Builder
		for _, change := range e.Changes {
			changes.WriteString("  " + linewriter.OneLine(change) + "\n")
		}
		return Usagef("allocation %s needs new processes for these changes:\n%s"+
			"--replace stops it gracefully and runs it again; another --index leaves it alone", e.ID, changes.String())
	}
	if _, ok := errors.AsType[*datadir.InvalidError](err); ok {
		return Usage(err)
	}
	return err
}

// LockAlloc locks an allocation.
func (l Layout) LockAlloc(id string, logger *slog.Logger) (*datadir.Lock, error) {
	lock, err := l.Lock(id, l.Store(l.version), logger)
	return lock, l.Explain(err)
}

// LockExisting locks an allocation unless it has been removed, as datadir.Dir.LockExisting does.
func (l Layout) LockExisting(id string, logger *slog.Logger) (*datadir.Lock, error) {
	lock, err := l.Dir.LockExisting(id, l.Store(l.version), logger)
	return lock, l.Explain(err)
}

// LockNew locks an allocation whose ID this process has drawn at random, as datadir.Dir.LockNew does.
func (l Layout) LockNew(id string, logger *slog.Logger) (*datadir.Lock, error) {
	lock, err := l.Dir.LockNew(id, l.Store(l.version), logger)
	return lock, l.Explain(err)
}

// TakeSticky gives the locked allocation the sticky data of its name, as datadir.Dir.TakeSticky does.
func (l Layout) TakeSticky(ctx context.Context, lock *datadir.Lock, alloc *api.Allocation) error {
	return l.Dir.TakeSticky(ctx, lock, alloc, l.Store(l.version), client.BusyTimeout)
}

// MakeDir makes the data directory.
func (l Layout) MakeDir() error {
	err := l.Make()
	if _, unusable := errors.AsType[*datadir.UnusableError](err); err != nil && !unusable {
		return fmt.Errorf("%w; choose another with --data-dir", err)
	}
	return l.Explain(err)
}

// Remembered returns the settings with which an allocation was last run, with the defaults if it never was.
func (l Layout) Remembered(id string) (agent.Settings, error) {
	r, err := l.Record(id)
	if err != nil {
		return agent.DefaultSettings(), err
	}
	return r.Settings()
}

// Record returns what an allocation remembers of its settings.
func (l Layout) Record(id string) (settings.Record, error) {
	if err := datadir.Trust(l.Alloc(id)); err != nil {
		return settings.Record{}, l.Explain(err)
	}
	return settings.Read(l.Alloc(id))
}

// Audited changes something that the allocations of the data directory share, and records it in the audit logs of those
// that have not ended. See agent.AuditShared.
func (l Layout) Audited(w Environment, command string, change func() (made string, err error)) error {
	ids, err := l.IDs()
	if err != nil {
		return err
	}
	var all []agent.Settings
	for _, id := range ids {
		kept, err := l.Remembered(id)
		if err == nil && kept.AuditLog == "" {
			continue
		}
		if saved, err := l.Peek(id); err == nil && (saved == nil || saved.Terminal) {
			continue
		}
		if err != nil {
			w.Warnf("warning: %v; if allocation %s has an audit log, it gets no line about this", err, id)
			continue
		}
		all = append(all, kept)
	}
	return agent.AuditShared(all, func(text string) { w.Warnf("warning: %s", text) }, command, change)
}

// Command returns a command line to copy. It names the data directory unless that is the default: without the flag, the
// command would act on another directory.
func (l Layout) Command(verb string, args ...string) string {
	words := []string{"taskapi", verb}
	if l.shown != "" {
		words = append(words, "--data-dir", ShellWord(l.shown))
	}
	return strings.Join(append(words, args...), " ")
}

// Describe says which allocation has a directory, perhaps in another data directory, and how to stop it.
func (l Layout) Describe(dir string) string {
	id := filepath.Base(dir)
	if data := filepath.Dir(filepath.Dir(dir)); data != string(l.Dir) {
		l.Dir, l.shown = datadir.Dir(data), data
	}
	name := "allocation " + id
	if dump, err := state.Inspect(l.State(id)); err == nil && dump.Saved.Alloc != nil {
		name = dump.Saved.Alloc.Name
	}
	return fmt.Sprintf("that is %s, which '%s' stops", name, l.Command("stop", output.ShortID(id)))
}

// RunCommand returns the command line that runs an allocation of the same name, before its job file.
func (l Layout) RunCommand(alloc *api.Allocation) string {
	name := alloc.Name
	if index := strings.Trim(name[strings.LastIndexByte(name, '[')+1:], "]"); index != "0" {
		return l.Command("run", "--index", index)
	}
	return l.Command("run")
}

// ShellWord returns a text as one word of a POSIX shell. It uses double quotes, since messages put commands into single
// ones.
func ShellWord(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n\"'\\$`&|;<>()*?[]#~=%!{}") {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(s) + `"`
}

// Package keeper keeps an allocation's tasks running while the agent that controls them dies, is upgraded, and comes
// back. The keeper is what containerd calls a shim and Nomad an executor: a small process of its own, the same program
// re-executed, which runs a processes.Local. It is the parent of the tasks and the writer of their logs. The agent has
// a Supervisor, which holds a Client, which speaks to the keeper over a Unix socket in the allocation directory.
//
//	agent: Supervisor ── Client ── keeper.sock ── keeper ── tasks
//
// The keeper promises: one for each allocation; no task notices the end of a client; the exits of tasks are kept until
// a client reads them, if need be in a file after its own end; only its own user's processes may control it, and of
// those the latest. It ends at Close, or when no task has run and no client has been there for a while. When the keeper
// itself is killed, the root processes of its tasks get SIGKILL from the kernel (unless they have changed their user),
// clients get drivers.ErrLost, and Sweep, or the next Start, kills what else is left: there is never a second copy of a
// task, but for what proctree.KillOrphans can't find. A keeper whose directory has been removed goes on; it can't be
// found by its record any more, but is by its arguments, and is ended before another one starts. It decides nothing
// about tasks: no restarts, no timeouts.
package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/internal/atomicfile"
	"taskapi/internal/flock"
	"taskapi/internal/privatefile"
	"taskapi/internal/proc"
)

// The closed set of errors of Open and Attach, besides driver's and ctx's.
var (
	// ErrNoKeeper: no keeper runs for this allocation.
	ErrNoKeeper = errors.New("no keeper runs")
	// ErrKeeperRuns: one does already.
	ErrKeeperRuns = errors.New("a keeper runs already: attach to it")
	// ErrReplaced: another client has taken control of the keeper since.
	ErrReplaced = drivers.ErrReplaced
	// ErrBusy: the keeper has too many requests at once. This one was refused, and nothing else changed.
	ErrBusy = errors.New("too many requests to the keeper at once")
	// ErrVersion: the keeper speaks a protocol that this program does not.
	ErrVersion = errors.New("the keeper is of an unknown version: stop the allocation with the program that started it")
)

// Files in the allocation directory, all 0600.
const (
	socketFile = "keeper.sock"
	recordFile = "keeper.json"
	draftFile  = "keeper.json.new" // while the record is written
	logFile    = "keeper.log"      // locked by the keeper as long as it lives
)

// maxRecord is more than the record of any group.
const maxRecord = 16 << 20

// Record is what the keeper writes about itself after every change.
type Record struct {
	Keeper proc.Identity
	Dir    directory
	Cgroup string                  // that holds its tasks, empty for none
	Tasks  []drivers.ProcessStatus // the latest process of each task
	At     proc.Moment             // when it was written
}

// directory identifies a directory, also after a move.
type directory struct {
	Path          string // when this was written
	Device, Inode uint64
}

func identifyDir(dir *os.File) (directory, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return directory{}, err
	}
	path, err := os.Readlink(fdPath(dir)) // it may have been moved
	return directory{path, st.Dev, st.Ino}, err
}

// CopyError says that an allocation directory is a copy of another one, whose keeper runs.
type CopyError struct {
	Dir, Of string
	PID     int
}

func (e *CopyError) Error() string {
	if e.Of == e.Dir {
		return fmt.Sprintf("%s is not the directory that was there: the keeper of that one, process %d, runs; "+
			"stop the allocation where it has been moved to, or end that process if it was removed", e.Dir, e.PID)
	}
	return fmt.Sprintf("%s is a copy of %s, whose keeper, process %d, runs: "+
		"stop the allocation there first, or end that process if its directory is gone", e.Dir, e.Of, e.PID)
}

// Last reads what the allocation's latest keeper wrote down. After the keeper's end, Tasks says how its tasks ended;
// nothing is known of a task without an Exit. In a copy of the directory, such as a restored back-up, the record names
// none of the keeper's processes. Errors: os.ErrNotExist when there has been no keeper, or it was closed; *CopyError,
// with a zero record.
func Last(dir string) (Record, error) {
	var r Record
	text, _, err := privatefile.Read(filepath.Join(dir, recordFile), maxRecord)
	if err != nil {
		return r, fmt.Errorf("read the keeper's record: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return Record{}, fmt.Errorf("read the keeper's record %s: %w", filepath.Join(dir, recordFile), err)
	}
	d, err := openDir(dir)
	if err != nil {
		return Record{}, fmt.Errorf("read the keeper's record: %w", err)
	}
	defer d.Close()
	here, err := identifyDir(d)
	if err != nil || here.Device == r.Dir.Device && here.Inode == r.Dir.Inode {
		return r, err
	}
	if r.Keeper.Runs() {
		return Record{}, &CopyError{Dir: here.Path, Of: r.Dir.Path, PID: r.Keeper.PID}
	}
	return Record{Tasks: r.Tasks}, nil
}

// runs reports whether the keeper of dir that wrote the record runs. When /proc hides the process, only its number is
// known, and another process of this user may have that by now: then the lock on the keeper's log decides.
func (r Record) runs(dir string) bool {
	return r.Keeper.Runs() && (!proc.Hidden(r.Keeper.PID) || errors.Is(unlocked(dir, 0), flock.ErrLocked))
}

// write replaces the record in an open directory. It is not synced: after a crash of the machine no process of it runs
// in any case. When it can't be written, the one before goes all the same, for it would be taken for the truth; the
// room that it had may be just what was missing.
func (r Record) write(dir *os.File) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	replace := func() error {
		return atomicfile.Replace(int(dir.Fd()), recordFile, text,
			atomicfile.Options{Mode: 0o600, Temporary: draftFile})
	}
	if err = replace(); err == nil {
		return nil
	}
	if unix.Unlinkat(int(dir.Fd()), recordFile, 0) != nil { // there was none, or nothing can be changed at all
		return err
	}
	return replace()
}

// inDir calls use with a path of the socket that is short enough for a socket address (107 bytes), however long dir is.
func inDir(dir string, use func(path string) error) error {
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return use(fdPath(d) + "/" + socketFile)
}

func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// openDir opens a directory, to look up the names in it.
func openDir(dir string) (*os.File, error) { return os.OpenFile(dir, unix.O_DIRECTORY|unix.O_PATH, 0) }

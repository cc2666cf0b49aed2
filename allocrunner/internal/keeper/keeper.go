// Package keeper keeps an allocation's tasks running while the agent that controls them dies, is upgraded, and comes
// back. containerd calls such a keeper a shim, Nomad an executor. It is a small process, the same program re-executed,
// which runs a processes.Local. It is the parent of the tasks and the writer of their logs. The agent has a Supervisor,
// which holds a Client, which speaks to the keeper over a Unix socket in the allocation directory.
//
//	agent: Supervisor ── Client ── keeper.sock ── keeper ── tasks
//
// The keeper promises: an allocation has one keeper; no task notices the end of a client; the exits of tasks are kept
// until a client reads them, if necessary in a file after the keeper's end; only processes of the keeper's user may
// control it, one at a time, and the latest wins. The keeper ends at Close, or after a while without tasks and clients.
// When the keeper itself is killed, the root processes of its tasks get SIGKILL from the kernel (unless they have
// changed their user), clients get drivers.ErrLost, and Sweep, or the next Start, kills what else is left: there is
// never a second copy of a task, except for processes that proctree.KillOrphans can't find. A keeper whose directory
// was removed goes on. It is then found by its arguments instead of its record, and ended before another keeper starts.
// A keeper decides nothing about tasks: no restarts, no timeouts.
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
	// ErrKeeperRuns: a keeper runs already.
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
	logFile    = "keeper.log"      // the keeper holds a lock on it as long as it lives
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

// Last reads the record of the allocation's latest keeper. After the keeper's end, Tasks says how its tasks ended; the
// end of a task without an Exit is unknown. In a copy of the directory, such as a restored backup, the record names
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

// runs reports whether the keeper of dir that wrote the record runs. If /proc hides the process, only its number is
// known, and another process of this user may have the same number by now. Then the lock on the keeper's log decides.
func (r Record) runs(dir string) bool {
	return r.Keeper.Runs() && (!proc.Hidden(r.Keeper.PID) || errors.Is(unlocked(dir, 0), flock.ErrLocked))
}

// write replaces the record in an open directory. It does not sync the record, since no process in it survives a crash
// of the machine. If the new record can't be written, the old one is removed all the same: readers would believe it,
// and its room may be just what was missing.
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

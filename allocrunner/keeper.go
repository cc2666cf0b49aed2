package allocrunner

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"

	"taskapi/allocrunner/artifacts/fetch"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/accounts"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/allocrunner/templates/render"
)

// KeeperMain runs the program when it has been re-executed as the parent of an allocation's tasks, to render templates,
// or to fetch artifacts: the program's main calls it before anything else, with its arguments, and exits with the code
// when kept is true. shorten, such as socket.ShortLink, gives the socket of a task that notifies a short address if the
// data directory is long; nil refuses such a task.
func KeeperMain(args []string, shorten drivers.Shorten) (code int, kept bool) {
	if len(args) >= 2 && args[1] == fetch.Command {
		return fetch.Main(args[2:]), true
	}
	if len(args) == 2 && args[1] == render.Command {
		return render.Main(), true
	}
	if len(args) != 3 || args[1] != keeper.Command { // the third is to be found by
		return 0, false
	}
	return keeper.Main(shorten), true
}

// unready are the processes that PrepareKeeper starts and no runner has taken yet, by allocation directory. Each
// function waits for its process, which is nil if it could not be started.
var unready = struct {
	mu    sync.Mutex
	byDir map[string]func() *keeper.Unready
}{byDir: map[string]func() *keeper.Unready{}}

// PrepareKeeper starts the process that is to be the parent of an allocation's tasks, beside what follows, so that it
// is ready when the allocation's runner needs it. The process does nothing before. It is for a directory that this
// process has locked, of an allocation that has not begun. end ends the process if no runner has taken it.
func PrepareKeeper(dir string) (end func()) {
	if isKeeper() {
		return func() {}
	}
	process := sync.OnceValue(func() *keeper.Unready {
		u, _ := keeper.Prepare(dir) // after an error the runner tries again, and reports it
		return u
	})
	go process()
	unready.mu.Lock()
	defer unready.mu.Unlock()
	unready.byDir[dir] = process
	return func() {
		if u := takeUnready(dir); u != nil {
			u.Close()
		}
	}
}

// takeUnready returns a process that PrepareKeeper has started, or nil.
func takeUnready(dir string) *keeper.Unready {
	unready.mu.Lock()
	process := unready.byDir[dir]
	delete(unready.byDir, dir)
	unready.mu.Unlock()
	if process == nil {
		return nil
	}
	return process()
}

// isKeeper reports whether this program was started as a keeper, and its main has not called KeeperMain first.
func isKeeper() bool { return len(os.Args) == 3 && os.Args[1] == keeper.Command }

// supervise returns the supervisor of the allocation's processes.
func (r *Runner) supervise(ctx context.Context, handed *keeper.Handed) (*keeper.Supervisor, error) {
	if isKeeper() { // otherwise it would start keepers without end
		return nil, errors.New("this program does not call KeeperMain first")
	}
	cfg := keeperConfig(r.cfg.Dir)
	cfg.Handed = handed
	cfg.Logger, cfg.Tied, cfg.Tenure = r.logger, r.cfg.Tied, r.cfg.Tenure
	if cfg.Unused = r.cfg.Unused; cfg.Unused {
		cfg.Unready = takeUnready(r.cfg.Dir)
	}
	return keeper.Supervise(ctx, cfg, r.cfg.Saved == nil)
}

// keeperConfig returns the configuration of the keeper of the allocation in dir. The directory tells its processes from
// those of an allocation with the same ID in another data directory.
func keeperConfig(dir string) keeper.Config {
	isolated, _ := accounts.Load(dir) // the keeper's record names users, too
	return keeper.Config{
		Dir: dir, Marker: "NOMAD_ALLOC_DIR=" + allocdir.Paths(dir, "").SharedDir,
		Users: slices.Collect(maps.Values(isolated.Tasks)),
	}
}

// TasksRunning reports whether the keeper of the allocation directory dir has a process, with or without a taskapi that
// controls the keeper. An idle keeper does not count, nor do processes that a killed keeper has left.
func TasksRunning(dir string) bool { return keeper.Busy(dir) }

// Search reports, as TasksRunning does, whether any process of a task in the allocation directory dir is alive, and
// whether nothing of the allocation runs, an idle keeper included.
func Search(dir string) (tasksRunning, unused bool) { return keeper.Search(keeperConfig(dir)) }

// ProcessesLeft reports whether any process of the allocation in dir is alive, also one that a killed keeper has left,
// or whether that can't be found out. Such a process may use all that the allocation has: ports, devices, volumes.
func ProcessesLeft(dir string) bool {
	left, err := OrphansRun(dir)
	_, isCopy := errors.AsType[*keeper.CopyError](err) // the original's keeper holds what the original has
	return left || err != nil && !isCopy
}

// CheckCopy returns an error when dir is a copy of an allocation directory whose keeper runs. The files in dir are
// about the original's tasks, which must not be touched from here.
func CheckCopy(dir string) error {
	_, err := keeper.Last(dir)
	if isCopy, ok := errors.AsType[*keeper.CopyError](err); ok {
		return isCopy
	}
	return nil
}

// OrphansRun reports whether anything runs that KillOrphans would kill.
func OrphansRun(dir string) (bool, error) { return keeper.Left(keeperConfig(dir)) }

// KillOrphans ends the keeper of the allocation directory dir with all its tasks, and the processes that an earlier
// keeper left running. It is for an allocation whose state can't be read. The tasks get SIGKILL. KillOrphans returns
// how many processes it has killed; none is no error. Errors: a taskapi controls the keeper; ctx's.
func KillOrphans(ctx context.Context, dir string) (killed int, err error) {
	return keeper.End(ctx, keeperConfig(dir))
}

// CanLimit returns why the memory and the CPU of tasks can't be limited by this user of this machine; nil if they can.
func CanLimit() error { return proctree.CanLimit() }

// CanPin returns why tasks can't be kept on their cores by this user of this machine; nil if they can.
func CanPin() error { return proctree.CanPin() }

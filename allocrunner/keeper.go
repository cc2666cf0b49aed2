package allocrunner

import (
	"context"
	"errors"
	"os"

	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/keeper"
)

// KeeperMain is the whole program when it has been executed anew as the parent of an allocation's tasks: the program's main calls
// it before anything else, with its arguments, and exits with the code when kept is true.
func KeeperMain(args []string) (code int, kept bool) {
	if len(args) != 3 || args[1] != keeper.Command { // the third is to be found by
		return 0, false
	}
	return keeper.Main(), true
}

// supervise finds or makes the parent of the allocation's processes, and what it has of them already: nothing for a new allocation. What is
// left of one that had its directory before goes first.
func (r *Runner) supervise(ctx context.Context) (driver.Supervisor, []driver.Status, error) {
	if len(os.Args) == 3 && os.Args[1] == keeper.Command { // else it would make keepers of itself without end
		return nil, nil, errors.New("this program does not call KeeperMain first")
	}
	cfg := keeperConfig(r.cfg.Dir)
	cfg.Logger = r.logger
	for {
		client, attached, err := keeper.Open(ctx, cfg)
		if err != nil {
			return nil, nil, err
		}
		known, err := client.List(ctx)
		switch {
		case err == nil && r.cfg.Saved == nil && len(known) > 0:
			if err := client.Close(); err != nil { // and the next has nothing
				return nil, nil, err
			}
		case err == nil:
			return newKept(cfg, client), known, nil
		case attached: // its tasks go on as they are, for another try
			return nil, nil, errors.Join(err, client.Detach())
		default:
			return nil, nil, errors.Join(err, client.Close())
		}
	}
}

// keeperConfig is that of the allocation whose directory dir is. The directory tells its processes from those of an allocation with the
// same ID in another data directory.
func keeperConfig(dir string) keeper.Config {
	return keeper.Config{Dir: dir, Mark: "NOMAD_ALLOC_DIR=" + allocdir.Paths(dir, "").SharedDir}
}

// TasksRunning reports whether tasks of the allocation whose directory dir is run still, with or without somebody who controls their keeper. One
// that has none, since its taskapi was killed before the first task started, or after the last one ended, is nothing to care about.
func TasksRunning(dir string) bool { return keeper.Busy(dir) }

// KillOrphans ends the keeper of the allocation whose directory dir is, with all its tasks, and whatever an earlier keeper has left of them,
// when nobody controls it: for an allocation whose state can't be read. The tasks get SIGKILL. It returns how many processes they
// were. It is no error when there is nothing to end. Errors: one that says so when a taskapi controls the keeper, ctx's.
func KillOrphans(ctx context.Context, dir string) (killed int, err error) {
	return keeper.End(ctx, keeperConfig(dir))
}

// parent is the parent of the processes while it is being made, beside the rest of the set-up: a new process takes its time.
type parent struct {
	ready     chan struct{} // nil when nobody has begun
	processes driver.Supervisor
	known     []driver.Status
	err       error
}

func (p *parent) begin(supervise func() (driver.Supervisor, []driver.Status, error)) {
	p.ready = make(chan struct{})
	go func() {
		p.processes, p.known, p.err = supervise()
		close(p.ready)
	}()
}

func (p *parent) await() (driver.Supervisor, []driver.Status, error) {
	if p.ready == nil {
		return nil, nil, nil
	}
	<-p.ready
	return p.processes, p.known, p.err
}

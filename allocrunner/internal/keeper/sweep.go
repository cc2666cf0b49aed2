package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/proc"
	"taskapi/allocrunner/internal/proctree"
)

// Swept counts the processes that a lost keeper left running, by task, besides the tasks' first ones. Those of no known task are under the
// empty name.
type Swept map[string]int

// Sweep kills what a keeper that was itself killed has left running, for one who does not want to start the next, or not yet. A keeper
// that still runs for the directory though its record or socket is gone is ended with its tasks. Errors: ErrKeeperRuns.
func Sweep(ctx context.Context, cfg Config) (Swept, error) { return sweep(ctx, cfg, false, nil) }

// Sweep is the package's, for one whose keeper has just been killed: what the keeper has told it counts, too, for the record may be
// missing, or an earlier keeper's. It also returns the latest process of each task, with the exit where that was written down.
func (c *Client) Sweep(ctx context.Context, cfg Config) (Swept, map[string]driver.Status, error) {
	tasks := map[string]driver.Status{}
	left, err := sweep(ctx, cfg, false, func(last Record) lost {
		l := c.lost(last)
		for _, t := range l.tasks {
			tasks[t.Task] = t // what the client was told comes last
		}
		return l
	})
	return left, tasks, err
}

// lost is what is known of a keeper that was killed.
type lost struct {
	cgroup string
	tasks  []driver.Status
	firsts []proctree.First
}

// lost is what is known by the record alone.
func (r Record) lost() lost {
	l := lost{cgroup: r.Cgroup}
	for _, t := range r.Tasks {
		l.add(t, r.Keeper.Boot, r.At)
	}
	return l
}

// lost is what is known of the client's keeper. A record is the last word of it only when it has the very processes that the client knows of;
// then what ran by it did so until the connection broke.
func (c *Client) lost(last Record) lost {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last.Keeper != c.id {
		last = Record{Keeper: c.id, Cgroup: c.cgroup}
	}
	l := lost{cgroup: last.Cgroup}
	told := maps.Clone(c.tasks)
	for _, t := range last.Tasks {
		at := last.At
		if known, ok := told[t.Task]; ok && known.PID == t.PID && known.StartedAt.Equal(t.StartedAt) {
			delete(told, t.Task)
			at = c.lostAt
		}
		l.add(t, c.id.Boot, at)
	}
	for _, t := range told {
		l.add(t, c.id.Boot, proc.Moment{}) // it may have ended since
		l.tasks[len(l.tasks)-1].Start = 0  // so nothing certain can be said of its session
	}
	return l
}

// add adds a task's process. What one that has ended left behind was cleared at its end.
func (l *lost) add(t driver.Status, boot string, alive proc.Moment) {
	l.tasks = append(l.tasks, t)
	if t.Exit == nil {
		l.firsts = append(l.firsts, proctree.First{Identity: proc.Identity{PID: t.PID, Start: t.Start, Boot: boot}, Task: t.Task, Alive: alive})
	}
}

func (l *lost) processes(cfg Config) proctree.Lost {
	return proctree.Lost{Cgroup: l.cgroup, Mark: cfg.Mark, Firsts: l.firsts}
}

// sweep looks also after a keeper that ended in order, by its record: that may be of one before the one that was lost. know says what is known
// of the lost keeper besides what its record says; nil for nothing.
func sweep(ctx context.Context, cfg Config, nobody bool, know func(Record) lost) (Swept, error) {
	last, err := Last(cfg.Dir)
	if _, gone := os.Lstat(filepath.Join(cfg.Dir, socketFile)); gone == nil && last.Keeper.Runs() {
		return nil, fmt.Errorf("process %d: %w", last.Keeper.PID, ErrKeeperRuns)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		cfg.log().Warn("the keeper's record is damaged; its processes are looked for by other means", "error", err)
	}
	if !nobody {
		if err := endFound(ctx, cfg); err != nil {
			return nil, err
		}
	}
	if err := unlocked(cfg.Dir); err != nil {
		return nil, err
	}
	if know == nil {
		know = Record.lost
	}
	l := know(last)
	strays, err := proctree.KillStrays(ctx, l.processes(cfg))
	left := Swept{}
	for _, s := range strays {
		if !slices.ContainsFunc(l.tasks, func(t driver.Status) bool { return t.PID == s.PID }) {
			left[s.Task]++
		}
	}
	reap(l.tasks, strays)
	if len(strays) > 0 {
		cfg.log().Warn("what an earlier keeper left running is killed", "dir", cfg.Dir, "processes", len(strays))
	}
	if err != nil {
		return left, fmt.Errorf("kill what the last keeper left running: %w", err)
	}
	return left, nil
}

// reap collects what a lost keeper's processes have become, where they are this program's to collect: when it is PID 1 in a container,
// they were handed to it at their keeper's end.
func reap(tasks []driver.Status, strays []proctree.Stray) {
	pids := []int{}
	for _, t := range tasks {
		pids = append(pids, t.PID)
	}
	for _, s := range strays {
		pids = append(pids, s.PID)
	}
	for _, pid := range pids {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // somebody else's, mostly
	}
}

package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/proc"
)

// OrphanCounts counts the processes that a lost keeper left running, by task and without the tasks' root processes.
// Processes of no known task count under the empty name.
type OrphanCounts map[string]int

// Sweep kills the processes that a killed keeper has left running. It is for a caller that starts no other keeper, or
// not yet. If a keeper still runs for the directory without a record or socket, Sweep ends it with its tasks. Errors:
// ErrKeeperRuns, *CopyError.
func Sweep(ctx context.Context, cfg Config) (OrphanCounts, error) {
	last, err := lastEnded(ctx, cfg, false)
	if err != nil {
		return nil, err
	}
	return last.hints().kill(ctx, cfg)
}

// Forget removes the files of a killed keeper from the directory of an ended allocation, after Sweep has ended its
// processes. The keeper's log stays.
func Forget(dir string) error {
	// left by a keeper that was killed while it wrote; it means nothing to the next
	_ = os.Remove(filepath.Join(dir, draftFile))
	for _, name := range []string{recordFile, socketFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("forget the keeper: %w", err)
		}
	}
	return nil
}

// Sweep does what the function Sweep does, for a client whose keeper has just been killed. It also uses the processes
// that the keeper has reported to the client, since the record may be missing or an earlier keeper's. It returns the
// latest process of each task, with its exit if that was recorded.
func (c *Client) Sweep(ctx context.Context, cfg Config) (OrphanCounts, map[string]LastStatus, error) {
	last, err := lastEnded(ctx, cfg, false)
	if err != nil {
		return nil, nil, err
	}
	r := c.hints(last)
	latest := map[string]LastStatus{}
	for _, l := range r.latest {
		latest[l.Task] = l // the client's knowledge is the latest
	}
	left, err := r.kill(ctx, cfg)
	return left, latest, err
}

// lastEnded makes sure that no keeper runs, and returns the directory's last record. It ends a keeper that can't be
// reached; with nobody, a search has just found none. The record may belong to a keeper that ended gracefully before
// the lost one. It is zero if it is missing or damaged. Errors: ErrKeeperRuns, *CopyError.
func lastEnded(ctx context.Context, cfg Config, nobody bool) (Record, error) {
	last, err := Last(cfg.Dir)
	if _, gone := os.Lstat(filepath.Join(cfg.Dir, socketFile)); gone == nil && last.runs(cfg.Dir) {
		return Record{}, fmt.Errorf("process %d: %w", last.Keeper.PID, ErrKeeperRuns)
	}
	if _, isCopy := errors.AsType[*CopyError](err); isCopy {
		return Record{}, err
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		cfg.log().Warn("the keeper's record is damaged; its processes are looked for by other means", "error", err)
	}
	if nobody {
		return last, unlocked(cfg.Dir, lockTime)
	}
	return last, endUnreachable(ctx, cfg)
}

// recoveryHints is what is known of a killed keeper. The processes that it has left running are found by it.
type recoveryHints struct {
	boot, cgroup string
	latest       []LastStatus
}

// LastStatus is the last process of a task whose keeper was killed.
type LastStatus struct {
	drivers.ProcessStatus
	alive proc.Moment // when it was last known to be alive; zero if only its start is known
	sure  bool        // once the orphans are killed, certainly no process of its session runs
}

// LostError returns a drivers.ErrLost that says what became of a task's process when its keeper was killed and the
// processes of the task that could be found were ended. The zero LastStatus means that nothing is known of the task.
func (l LastStatus) LostError() error {
	if l.sure {
		return fmt.Errorf("%w, and the task with it", drivers.ErrLost)
	}
	return fmt.Errorf("%w, and what was found of the task was ended", drivers.ErrLost)
}

// hints returns the hints that the record alone gives.
func (r Record) hints() recoveryHints {
	all := recoveryHints{boot: r.Keeper.Boot, cgroup: r.Cgroup}
	for _, t := range r.Tasks {
		all.latest = append(all.latest, LastStatus{ProcessStatus: t, alive: r.At, sure: true})
	}
	return all
}

// hints returns the hints about the client's keeper. The record is the keeper's last one only if it has exactly the
// processes that the client knows. Then a process that runs according to the record ran until the connection broke.
func (c *Client) hints(last Record) recoveryHints {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last.Keeper != c.id {
		last = Record{Keeper: c.id, Cgroup: c.cgroup}
	}
	r := last.hints()
	unrecorded := maps.Clone(c.tasks)
	for i, l := range r.latest {
		if known, ok := unrecorded[l.Task]; ok && known.PID == l.PID && known.StartedAt.Equal(l.StartedAt) {
			delete(unrecorded, l.Task)
			r.latest[i].alive = c.over
		}
	}
	for _, t := range unrecorded { // one may have ended since, so nothing certain can be said of its session
		r.latest = append(r.latest, LastStatus{ProcessStatus: t})
	}
	return r
}

// forTree leaves out the processes that have ended, since the processes that they left behind were killed then.
func (r recoveryHints) forTree(cfg Config) proctree.Hints {
	hints := proctree.Hints{
		Cgroup: r.cgroup, Name: digest(cfg.Dir), Marker: cfg.Marker, NoCgroup: cfg.NoCgroup,
		Users: slices.Clone(cfg.Users),
	}
	for _, l := range r.latest {
		hints.Users = append(hints.Users, l.UID)
		if l.NoCgroup != "" {
			hints.Unfenced = append(hints.Unfenced, l.Task)
		}
		if l.Exit == nil {
			id := proc.Identity{PID: l.PID, Start: l.Start, Boot: r.boot}
			hints.Roots = append(hints.Roots, proctree.RootProcess{Identity: id, Task: l.Task, Alive: l.alive})
		}
	}
	return hints
}

// kill kills the processes that still run. The caller has made sure that no keeper runs.
func (r recoveryHints) kill(ctx context.Context, cfg Config) (OrphanCounts, error) {
	orphans, err := proctree.KillOrphans(ctx, r.forTree(cfg))
	left := OrphanCounts{}
	for _, s := range orphans {
		if !slices.ContainsFunc(r.latest, func(l LastStatus) bool { return l.PID == s.PID }) {
			left[s.Task]++
		}
	}
	if len(orphans) > 0 {
		cfg.log().Warn("processes that an earlier keeper left running were killed", "dir", cfg.Dir, "processes", len(orphans))
	}
	if err != nil {
		return left, fmt.Errorf("kill the processes that the last keeper left running: %w", err)
	}
	return left, nil
}

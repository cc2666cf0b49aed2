package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/flock"
	"taskapi/internal/privatefile"
	"taskapi/internal/proc"
)

// endTime bounds the graceful end of a keeper. It is longer than the time in which processes.Local kills the tasks.
const endTime = 15 * time.Second

// leaveGrace is how long a keeper may take to notice that its client has left.
const leaveGrace = 500 * time.Millisecond

// endPoll is how often this process checks whether the caller still waits.
const endPoll = 200 * time.Millisecond

// arguments returns the arguments of a directory's keeper, as proc.Args has them. Everybody on the machine can read
// them, so they name the directory only by a digest, together with the mount namespace in which the path is valid.
func arguments(dir string) string { return "taskapi\x00" + Command + "\x00" + digest(dir) + "\x00" }

// digest names a directory without showing its path to others.
func digest(dir string) string {
	namespace, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		namespace = "unknown"
	}
	sum := sha256.Sum256([]byte(namespace + "\x00" + dir))
	return hex.EncodeToString(sum[:16])
}

// find finds the keepers that run for a directory by their arguments, which also works when the directory was removed
// or the record is damaged. It leaves out keepers of other users, and keepers in another mount namespace, where the
// path means another directory.
func find(dir string) ([]proc.Identity, error) {
	pids, err := proc.PIDs()
	if err != nil {
		return nil, fmt.Errorf("look for a keeper: %w", err)
	}
	args := arguments(dir)
	var found []int
	for _, pid := range pids {
		var st unix.Stat_t
		if proc.Args(pid) == args && unix.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && st.Uid == uint32(os.Geteuid()) {
			found = append(found, pid)
		}
	}
	var ids []proc.Identity
	for _, pid := range found {
		s, err := proc.Read(pid)
		if err != nil || slices.Contains(found, s.Parent) { // a keeper's child, about to execute a task's program
			continue
		}
		if id, err := proc.Identify(pid); err == nil && pid != os.Getpid() {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// keepers returns the keeper that wrote the directory's last record, if that keeper runs, and otherwise the keepers
// that a search finds for the directory. It also returns the record, which is zero if it can't be read. Errors:
// *CopyError, those of the search.
func keepers(dir string) ([]proc.Identity, Record, error) {
	last, err := Last(dir)
	if _, isCopy := errors.AsType[*CopyError](err); isCopy {
		return nil, last, err
	}
	if last.runs(dir) {
		return []proc.Identity{last.Keeper}, last, nil
	}
	ids, err := find(dir)
	return ids, last, err
}

// Busy reports whether a keeper with processes runs for the allocation directory, even if parts of the directory are
// gone. Processes that tasks leave behind are also children of the keeper.
func Busy(dir string) bool {
	ids, _, _ := keepers(dir) // what can't be looked for is not there
	return haveChildren(ids)
}

// haveChildren reports whether one of the keepers has a process that runs.
func haveChildren(ids []proc.Identity) bool {
	for _, id := range ids {
		children, _ := proc.Children(id.PID) // what can't be looked for is not there
		for _, pid := range children {
			if s, err := proc.Read(pid); err == nil && !s.Dead && s.Parent == id.PID {
				return true
			}
		}
	}
	return false
}

// Search reports whether a keeper with processes runs for the allocation directory, as Busy does. It also reports
// whether nothing of the allocation runs: neither a keeper nor processes that a killed keeper has left.
func Search(cfg Config) (busy, unused bool) {
	ids, last, err := keepers(cfg.Dir)
	if len(ids) > 0 || err != nil {
		return haveChildren(ids), false
	}
	orphans, err := proctree.FindOrphans(last.hints().forTree(cfg))
	return false, err == nil && len(orphans) == 0
}

// Left reports whether anything of the allocation runs: processes of a keeper, or processes that a killed keeper has
// left.
func Left(cfg Config) (bool, error) {
	ids, last, err := keepers(cfg.Dir)
	if err != nil || haveChildren(ids) {
		return err == nil, err
	}
	orphans, err := proctree.FindOrphans(last.hints().forTree(cfg))
	return len(orphans) > 0, err
}

// End ends the allocation's keeper with all its tasks, and the processes that an earlier keeper has left. It needs no
// Client: it is for a keeper that nobody can control any more. It returns how many processes of tasks it has ended.
// Errors: ErrKeeperRuns when a client controls it, *CopyError, ctx's.
func End(ctx context.Context, cfg Config) (int, error) {
	_, last, err := keepers(cfg.Dir)
	if err != nil {
		return 0, err
	}
	hints := last.hints().forTree(cfg)
	orphans, err := proctree.FindOrphans(hints)
	if err != nil {
		return 0, fmt.Errorf("end keeper: %w", err)
	}
	killed := map[int]bool{}
	for _, s := range orphans {
		killed[s.PID] = true
	}
	if last.runs(cfg.Dir) {
		err = end(ctx, last.Keeper)
	}
	if err == nil {
		err = endUnreachable(ctx, cfg)
	}
	if err != nil {
		return 0, fmt.Errorf("end keeper: %w", err)
	}
	orphans, err = proctree.KillOrphans(ctx, hints)
	for _, s := range orphans {
		killed[s.PID] = true
	}
	if err != nil {
		return len(killed), fmt.Errorf("kill what the keeper left running: %w", err)
	}
	return len(killed), nil
}

// endUnreachable ends the keepers of the directory that can't be reached through it, so that no keeper runs for it.
func endUnreachable(ctx context.Context, cfg Config) error {
	ids, _, err := keepers(cfg.Dir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := end(ctx, id); err != nil {
			return err
		}
		cfg.log().Warn("a keeper that can't be reached has been ended, and its tasks with it: its directory or its "+
			"socket was removed",
			"dir", cfg.Dir, "pid", id.PID)
	}
	return unlocked(cfg.Dir, lockTime)
}

// lockTime is how long a caller waits for the lock. Another process may hold it for a moment to test it, or a killed
// keeper's child may hold it until it executes its program.
const lockTime = time.Second

// lock takes the lock that a keeper holds as long as it lives. If no keeper was found and the lock is held, its holder
// is hidden from this user.
func lock(fd int, name string, most time.Duration) error {
	err := flock.Lock(fd, unix.LOCK_EX, most)
	if errors.Is(err, flock.ErrLocked) {
		return fmt.Errorf("a keeper that can't be seen from here: most likely the allocation runs in another "+
			"container or "+
			"PID namespace; stop it there, or end the process that has %s open, and try again: %w", name, err)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", name, err)
	}
	return nil
}

// unlocked makes sure that no hidden keeper runs for the directory; the tasks of a hidden keeper may be visible. It
// waits no longer than most. Errors: flock.ErrLocked.
func unlocked(dir string, most time.Duration) error {
	name := filepath.Join(dir, logFile)
	f, err := privatefile.Open(name, os.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // with the lock
	return lock(int(f.Fd()), name, most)
}

// end ends a keeper without a client: gracefully, or with SIGKILL if it does not exit. A file in the directory marks a
// keeper with a client.
func end(ctx context.Context, id proc.Identity) error {
	if err := id.Signal(unix.SIGCONT); err != nil { // a stopped process handles no signal
		return fmt.Errorf("end process %d: %w", id.PID, err)
	}
	for deadline := time.Now().Add(leaveGrace); proc.HasSign(id.PID) && time.Now().Before(deadline); {
		id.Await(leaveGrace / 10) // its client has just left, perhaps
	}
	if proc.HasSign(id.PID) {
		return fmt.Errorf("process %d, controlled by another taskapi, which is to be stopped first: %w", id.PID,
			ErrKeeperRuns)
	}
	if err := id.Signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("end process %d: %w", id.PID, err)
	}
	for deadline := time.Now().Add(endTime); !id.Await(endPoll); {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("process %d does not end: %w", id.PID, err)
		}
		if proc.HasSign(id.PID) {
			return fmt.Errorf("process %d, which another taskapi controls now: %w", id.PID, ErrKeeperRuns)
		}
		if time.Now().After(deadline) {
			break
		}
	}
	if err := id.Signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	if !id.Await(exitTime) {
		return fmt.Errorf("process %d does not die", id.PID)
	}
	return nil
}

package proctree

import (
	"maps"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// reapPause is the least time between two looks for dead orphans: a task that leaves thousands behind costs no more than one
// look each. Until then they are zombies, which hold a process number and nothing else.
const reapPause = 50 * time.Millisecond

// ownSet holds the root processes: who waits for them is os.Process, and no one else may.
type ownSet struct {
	mu   sync.Mutex // held while a process starts, so that none is reaped before it is known
	pids map[int]*os.Process
}

func (o *ownSet) start(start func() (*os.Process, error)) (*os.Process, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	proc, err := start()
	if err == nil {
		o.pids[proc.Pid] = proc
	}
	return proc, err
}

// has reports whether the process was started here, and is no orphan.
func (o *ownSet) has(pid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pids[pid] != nil
}

// now returns the numbers of those that run.
func (o *ownSet) now() map[int]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	pids := make(map[int]bool, len(o.pids))
	for pid := range o.pids {
		pids[pid] = true
	}
	return pids
}

// remove forgets a process that has been waited for, unless its number is another's by now.
func (o *ownSet) remove(proc *os.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pids[proc.Pid] == proc {
		delete(o.pids, proc.Pid)
	}
}

// reaper collects the orphans that this program inherits from its tasks when they die. Where others start processes, too
// (not all), it takes only those that a tree was found to hold: to reap another's child would steal its exit code.
type reaper struct {
	own  *ownSet
	all  bool
	wake chan struct{}

	mu    sync.Mutex // guards known
	known map[int]uint64
}

func (r *reaper) run(quit <-chan struct{}) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)
	for {
		select {
		case <-died:
		case <-r.wake:
		case <-quit:
			r.reap()
			return
		}
		r.reap()
		select {
		case <-time.After(reapPause):
		case <-quit:
		}
	}
}

// kick makes the reaper look.
func (r *reaper) kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// know makes a process one to be reaped should it be inherited.
func (r *reaper) know(s proc.Stat) {
	if r.all {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[s.PID] = s.Start
}

func (r *reaper) reap() {
	if !anyDead() && !r.knowsAny() {
		return
	}
	all, err := proc.All()
	if err != nil {
		return
	}
	r.own.mu.Lock() // nothing starts meanwhile
	defer r.own.mu.Unlock()
	for pid, s := range all {
		if s.Parent == os.Getpid() && s.Dead && r.own.pids[pid] == nil && r.mayReap(s) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // gone already, then
		}
	}
	r.forgetAllBut(all)
}

// mayReap reports whether a dead child is a task's orphan.
func (r *reaper) mayReap(s proc.Stat) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	start, ok := r.known[s.PID]
	return r.all || ok && start == s.Start
}

func (r *reaper) knowsAny() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known) > 0
}

// forgetAllBut forgets the processes that have been reaped.
func (r *reaper) forgetAllBut(all map[int]proc.Stat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.known, func(pid int, start uint64) bool { return all[pid].Start != start })
}

// anyDead reports whether some child waits to be reaped.
func anyDead() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

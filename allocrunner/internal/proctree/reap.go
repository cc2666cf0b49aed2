package proctree

import (
	"maps"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// reapPause is the shortest time between two looks for dead orphans, so that a task that leaves thousands of them costs
// little. Until they are reaped they are zombies, which have a process number and nothing else.
const reapPause = 50 * time.Millisecond

// ownSet holds the root processes. Only their os.Process may wait for them.
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

// has reports whether the process is a root process.
func (o *ownSet) has(pid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pids[pid] != nil
}

// now returns the root processes by their numbers.
func (o *ownSet) now() map[int]*os.Process {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.pids)
}

// remove forgets a process that has been waited for, unless another one has its number by now.
func (o *ownSet) remove(proc *os.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pids[proc.Pid] == proc {
		delete(o.pids, proc.Pid)
	}
}

// reaper reaps the orphans that this program inherits from its tasks.
type reaper struct {
	own  *ownSet
	wake wake.Signal // it has to look
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

func (r *reaper) reap() {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || info.Signo == 0 { // no child is dead
		return
	}
	children, err := proc.Children(os.Getpid())
	if err != nil {
		return
	}
	r.own.mu.Lock() // nothing starts meanwhile
	defer r.own.mu.Unlock()
	for _, pid := range children {
		if r.own.pids[pid] == nil {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // runs, or is gone already
		}
	}
}

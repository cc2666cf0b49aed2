package allocrunner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/wake"
)

// journalRetry is the pause after a failed write of the state, usually because of a full disk. It is long enough to
// cost nothing, and short enough to lose little once there is room again.
const journalRetry = 2 * time.Second

// journalWait bounds how long a task waits for the write of its record: a disk that hangs must not keep the task from
// being killed.
const journalWait = 3 * time.Second

// journal is the one writer of the allocation's state. A goroutine of its own writes changes soon, all that have
// gathered at a time. A change that must be saved before anybody acts on it is waited for. A failed write is logged
// once and retried for as long as the allocation runs: unwritten changes stay in memory, and the tasks run on.
type journal struct {
	runner *Runner     // values are read when they are written, so that no older version follows a newer one
	wake   wake.Signal // there is something to write

	writing sync.Mutex // held during a write, so that an older record never follows a newer one

	mu      sync.Mutex // guards the fields below
	pending pending
	added   uint64 // how often something has become pending
	tried   uint64 // the value of that count when the latest write began
	err     error  // of the latest write
}

// pending lists the values that are still to be written.
type pending struct {
	alloc     bool
	checks    api.AllocCheckStatuses
	tasks     map[string]bool
	killAfter time.Time
}

// allocChanged asks for a write of the allocation soon. The ticket is for flush.
func (j *journal) allocChanged() (ticket uint64) { return j.add(func(p *pending) { p.alloc = true }) }

// taskChanged asks for a write of a task's record soon.
func (j *journal) taskChanged(task string) (ticket uint64) {
	return j.add(func(p *pending) { p.addTask(task) })
}

// checksChanged asks for a write of results soon.
func (j *journal) checksChanged(results api.AllocCheckStatuses) {
	if results == nil {
		results = api.AllocCheckStatuses{}
	}
	j.add(func(p *pending) { p.checks = results })
}

// errStateHangs: a write of the state takes longer than journalWait.
var errStateHangs = errors.New("the state's disk does not answer")

// taskSafe returns nil when the task's record is written. Errors: why it can't be written for now, which is logged.
func (j *journal) taskSafe(task string) error {
	ticket := j.taskChanged(task)
	if ticket == 0 {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- j.flush(ticket) }() // ends with the write, which a hanging disk may hold
	select {
	case err := <-done:
		return err
	case <-time.After(journalWait):
		j.runner.logger.Warn("the state's disk does not answer; the task continues without it", "task", task)
		return errStateHangs
	}
}

// add makes something pending. The ticket is 0 for an allocation whose state is not saved.
func (j *journal) add(edit func(*pending)) (ticket uint64) {
	if j.runner.cfg.State == nil {
		return 0
	}
	j.mu.Lock()
	edit(&j.pending)
	j.added++
	ticket = j.added
	j.mu.Unlock()
	j.wake.Send()
	return ticket
}

// run writes changes until ctx ends.
func (j *journal) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.wake:
		}
		j.mu.Lock()
		latest := j.added
		j.mu.Unlock()
		if j.flush(latest) == nil {
			continue
		}
		select {
		case <-time.After(journalRetry):
			j.add(func(*pending) {}) // which the next flush takes for something to write
		case <-ctx.Done():
		}
	}
}

// flush returns when a write that began after the ticket was given has ended, with its error.
func (j *journal) flush(ticket uint64) error {
	if ticket == 0 {
		return nil
	}
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	if j.tried >= ticket {
		defer j.mu.Unlock()
		return j.err
	}
	p := j.pending
	j.pending, j.tried = pending{}, j.added
	j.mu.Unlock()
	err := j.runner.cfg.State.Put(j.change(p))
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case err != nil:
		if j.err == nil {
			j.runner.logger.Warn("state could not be written; it is kept in memory and tried again: make room on the disk",
				"error", err)
		}
		j.pending = p.under(j.pending)
	case j.err != nil:
		j.runner.logger.Info("state is written again")
	}
	j.err = err
	return err
}

func (j *journal) change(p pending) interfaces.Saved {
	r := j.runner
	c := interfaces.Saved{
		Checks: p.checks, KillAfter: p.killAfter,
		Tasks: make(map[string]interfaces.SavedTask, len(p.tasks)),
	}
	if p.alloc {
		c.Terminal = r.Terminal() // before the version: no version from before the end is saved as terminal
		c.Alloc, c.Life, c.Deployments = r.Alloc(), r.cfg.Life, r.Deployments()
	}
	for name := range p.tasks {
		c.Tasks[name] = r.byName[name].Saved()
	}
	return c
}

func (p *pending) addTask(task string) {
	if p.tasks == nil {
		p.tasks = map[string]bool{}
	}
	p.tasks[task] = true
}

// under returns what is pending when p could not be written and newer has become pending meanwhile.
func (p pending) under(newer pending) pending {
	p.alloc = p.alloc || newer.alloc
	if newer.checks != nil {
		p.checks = newer.checks
	}
	if !newer.killAfter.IsZero() {
		p.killAfter = newer.killAfter
	}
	for name := range newer.tasks {
		p.addTask(name)
	}
	return p
}

package allocrunner

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/wake"
)

// journalRetry is the pause after a failed write of the state, which is most often a full disk: long enough to cost
// nothing, short enough that little is lost once there is room again.
const journalRetry = 2 * time.Second

// journalWait bounds how long a task waits for its record to be written: a disk that hangs must not keep it from being
// killed.
const journalWait = 3 * time.Second

// journal is the one writer of the allocation's state. What changes is written soon, by a goroutine of its own and as
// much at a time as has gathered; what must be safe before it is acted on is waited for. A failed write is logged once
// and retried for as long as the allocation runs: what is to be written stays in memory, and the tasks run on.
type journal struct {
	runner *Runner     // what is written is read when it is, so that an older version never follows a newer one
	wake   wake.Signal // there is something to write

	writing sync.Mutex // held over a write, so that an older record never follows a newer one

	mu      sync.Mutex // guards the fields below
	pending pending
	added   uint64 // how often something has become pending
	tried   uint64 // what had, when the latest write began
	err     error  // of the latest write
}

// pending is what is to be written.
type pending struct {
	alloc     bool
	checks    api.AllocCheckStatuses
	tasks     map[string]bool
	killAfter time.Time
}

// allocChanged has the allocation written soon. The ticket is for flush.
func (j *journal) allocChanged() (ticket uint64) { return j.add(func(p *pending) { p.alloc = true }) }

// taskChanged has a task's record written soon.
func (j *journal) taskChanged(task string) (ticket uint64) {
	return j.add(func(p *pending) { p.addTask(task) })
}

// checksChanged has results written soon.
func (j *journal) checksChanged(results api.AllocCheckStatuses) {
	if results == nil {
		results = api.AllocCheckStatuses{}
	}
	j.add(func(p *pending) { p.checks = results })
}

// taskSafe returns when the task's record is written, or can't be for now.
func (j *journal) taskSafe(task string) {
	ticket := j.taskChanged(task)
	if ticket == 0 {
		return
	}
	done := make(chan struct{})
	go func() { // ends with the write, which a hanging disk may hold
		_ = j.flush(ticket) // said by flush
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(journalWait):
		j.runner.logger.Warn("the state's disk does not answer; the task continues without it", "task", task)
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

// run writes what changes until ctx ends.
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

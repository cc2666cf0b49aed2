package top

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/hashicorp/nomad/api"
)

// How often things are looked at. After a look that took long the pause is longer, so that neither side is busy
// with it.
const (
	clockPause  = time.Second
	allocPause  = 200 * time.Millisecond // between two versions of the allocation
	pollPause   = 2 * time.Second        // between two looks at the usage and the checks
	awayPause   = time.Second            // between two attempts to reach a taskapi that is away
	endedPause  = 3 * time.Second        // an allocation that has ended may be run again
	chosenPause = 150 * time.Millisecond // a task's output is opened when the task has been chosen for so long
	outputPause = 100 * time.Millisecond // between two parts of an output
	lookShare   = 4                      // a pause lasts at least this many times as long as the look

	lookTimeout   = 10 * time.Second
	actionTimeout = 2 * time.Minute // a restart waits for kill_timeout
)

// What the commands report.
type (
	clockMsg    time.Time
	snapshotMsg struct {
		Snapshot
		err error
	}
	pollMsg struct {
		usage     *api.AllocResourceUsage
		usageErr  error
		checks    api.AllocCheckStatuses
		checksErr error
	}
	outputMsg struct {
		choice int
		output Output // nil when it could not be opened
		chunk  Chunk  // nothing when it was opened just now
		err    error
	}
	actionMsg struct {
		what string // is said when it has worked
		err  error
	}
)

// clock tells the time from time to time.
func (m *Model) clock() tea.Cmd {
	zone := m.now.Location()
	return tea.Tick(clockPause, func(t time.Time) tea.Msg { return clockMsg(t.In(zone)) })
}

// readAllocation waits for a version of the allocation after index.
func (m *Model) readAllocation(index uint64, pause time.Duration) tea.Cmd {
	return m.work.command(func(ctx context.Context) tea.Msg {
		sleep(ctx, pause)
		s, err := m.Source.Allocation(ctx, index)
		return snapshotMsg{s, err}
	})
}

// poll looks at the usage and the checks.
func (m *Model) poll(pause time.Duration) tea.Cmd {
	return m.work.command(func(ctx context.Context) tea.Msg {
		sleep(ctx, pause)
		var p pollMsg
		bounded, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		began := time.Now()
		p.usage, p.usageErr = m.Source.Stats(bounded)
		p.checks, p.checksErr = m.Source.Checks(bounded)
		sleep(ctx, lookShare*time.Since(began))
		return p
	})
}

// openOutput opens the output of a task.
func (m *Model) openOutput(ctx context.Context, choice int, task, stream string, pause time.Duration) tea.Cmd {
	return m.work.command(func(context.Context) tea.Msg {
		sleep(ctx, pause)
		if ctx.Err() != nil { // another task has been chosen meanwhile
			return nil
		}
		output, err := m.Source.Output(ctx, task, stream)
		return outputMsg{choice: choice, output: output, err: err}
	})
}

// readOutput reads a part of an output.
func (m *Model) readOutput(choice int, output Output, pause time.Duration) tea.Cmd {
	return m.work.command(func(ctx context.Context) tea.Msg {
		sleep(ctx, pause)
		chunk, err := output.Next()
		return outputMsg{choice, output, chunk, err}
	})
}

// begin begins to change the allocation, and says so.
func (m *Model) begin(what string, action func(ctx context.Context) error) {
	m.say(what+" ...", false)
	m.next = m.work.command(func(ctx context.Context) tea.Msg {
		bounded, cancel := context.WithTimeout(ctx, actionTimeout)
		defer cancel()
		return actionMsg{what, action(bounded)}
	})
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

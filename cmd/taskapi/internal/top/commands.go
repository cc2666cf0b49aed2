package top

import (
	"context"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/top/tasktext"
	"taskapi/internal/wake"
)

// How often things are looked at. After a look that took long the pause is longer, so that neither side is busy
// with it.
const (
	clockPause  = time.Second
	findPause   = 3 * time.Second        // between two looks for allocations, and at those that have ended
	restPause   = 10 * time.Second       // the same inside of one that runs
	allocPause  = 200 * time.Millisecond // between two versions of the allocation
	pollPause   = 2 * time.Second        // between two looks at the usage and the checks
	awayPause   = time.Second            // between two attempts to reach a taskapi that is away; in the list findPause
	chosenPause = 150 * time.Millisecond // a task's output is opened when the task has been chosen for so long
	outputPause = 100 * time.Millisecond // between two parts of an output
	// refreshPause is the time from the first of several polls to their drawing.
	refreshPause = 20 * time.Millisecond
	lookShare    = 4 // a pause lasts at least this many times as long as the look

	// crowd is how many allocations are polled at pollPause; of more, each is polled less often.
	crowd = 20

	lookTimeout   = 10 * time.Second
	actionTimeout = 2 * time.Minute // a restart waits for kill_timeout
)

// What the commands report.
type (
	clockMsg   time.Time
	refreshMsg struct{}
	foundMsg   struct {
		all []Found
		err error
	}
	snapshotMsg struct {
		*watch
		Snapshot
		err error
	}
	pollMsg struct {
		*watch
		usage     *api.AllocResourceUsage
		usageErr  error
		checks    api.AllocCheckStatuses
		checksErr error
		refused   map[string][]*api.TaskEvent // nil when they could not be read
	}
	openedMsg []outputMsg // in the order in which they are shown
	outputMsg struct {
		choice int
		stream tasktext.Stream
		output Output // nil when it could not be opened
		chunk  Chunk  // nothing when it was opened just now
		err    error
	}
	actionMsg struct {
		what string // is said when it has worked
		err  error
	}
)

// clock tells the time with each second.
func (m *Model) clock() tea.Cmd {
	return tea.Every(clockPause, func(time.Time) tea.Msg { return clockMsg(m.Clock()) })
}

func (m *Model) find(pause time.Duration) tea.Cmd {
	return m.work.command(func(ctx context.Context) tea.Msg {
		_ = wake.Sleep(ctx, pause)
		began := time.Now()
		all, err := m.Find(ctx)
		_ = wake.Sleep(ctx, lookShare*time.Since(began)-findPause)
		return foundMsg{all, err}
	})
}

// readAllocation waits for a version of the allocation after index.
func (m *Model) readAllocation(w *watch, index uint64, pause time.Duration) tea.Cmd {
	return m.work.command(func(ctx context.Context) tea.Msg {
		_ = wake.Sleep(ctx, pause)
		s, err := w.source.Allocation(ctx, index)
		return snapshotMsg{w, s, err}
	})
}

// poll looks at the usage and the checks, each time the clock has passed the pause: all polls come together, so that
// the screen and the processor rest between them.
func (m *Model) poll(w *watch, pause time.Duration) tea.Cmd {
	return m.work.command(func(ctx context.Context) tea.Msg {
		if pause > 0 {
			now := time.Now()
			_ = wake.Sleep(ctx, now.Truncate(pause).Add(pause).Sub(now))
		}
		p := pollMsg{watch: w}
		bounded, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		began := time.Now()
		p.usage, p.usageErr = w.source.Stats(bounded)
		p.checks, p.checksErr = w.source.Checks(bounded)
		p.refused, _ = w.source.Refusals(bounded)
		_ = wake.Sleep(ctx, lookShare*time.Since(began))
		return p
	})
}

// openOutput opens streams of a task. What they had before is read in the order in which they were written last, since
// nothing says which of their lines came first.
func (m *Model) openOutput(ctx context.Context, w *watch, choice int, task string, streams []tasktext.Stream,
	pause time.Duration) tea.Cmd {
	return m.work.command(func(context.Context) tea.Msg {
		_ = wake.Sleep(ctx, pause)
		if ctx.Err() != nil { // another task has been chosen meanwhile
			return nil
		}
		opened := make(openedMsg, len(streams))
		for i, s := range streams {
			opened[i] = outputMsg{choice: choice, stream: s}
			opened[i].output, opened[i].err = w.source.Output(ctx, task, s.String())
		}
		written := func(o outputMsg) time.Time {
			if o.output == nil {
				return time.Time{}
			}
			return o.output.Written()
		}
		slices.SortStableFunc(opened, func(a, b outputMsg) int { return written(a).Compare(written(b)) })
		for i, o := range opened {
			if !written(o).IsZero() {
				opened[i].chunk, opened[i].err = o.output.Next()
			}
		}
		return opened
	})
}

func (m *Model) readOutput(o outputMsg, pause time.Duration) tea.Cmd {
	return m.work.command(func(ctx context.Context) tea.Msg {
		_ = wake.Sleep(ctx, pause)
		o.chunk, o.err = o.output.Next()
		return o
	})
}

// begin begins to change an allocation, and says so.
func (m *Model) begin(what string, action func(ctx context.Context) error) {
	m.say(what+" ...", false)
	m.next = m.work.command(func(ctx context.Context) tea.Msg {
		bounded, cancel := context.WithTimeout(ctx, actionTimeout)
		defer cancel()
		return actionMsg{what, action(bounded)}
	})
}

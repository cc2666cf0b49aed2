package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/hashicorp/nomad/api"
)

// presence says whether a taskapi runs the allocation now.
type presence int

const (
	connecting presence = iota // nothing has been seen yet
	running
	away  // no taskapi answers; what is shown was seen before
	ended // nothing of the allocation runs any more
)

// Model is the screen of an allocation with its keys. It is a bubbletea model, which only messages change.
type Model struct {
	Config
	work *work
	now  time.Time

	width, height int
	presence      presence
	since         time.Time // of presence
	why           string    // of away and connecting
	alloc         *api.Allocation
	usage         *api.AllocResourceUsage
	usageErr      error
	checks        api.AllocCheckStatuses
	checksErr     error

	tasks  []task // in the order of the table
	order  int    // index of the table's order
	cursor int    // index of the chosen task
	table  int    // index of the first one shown
	chosen string // name of the chosen task, which stays chosen when the order changes

	panels [panelCount]panel
	panel  panelKind
	focus  focus
	zoomed bool
	only   bool // events and checks of the chosen task alone

	stream string // of the output: stdout or stderr
	choice int    // counts what was chosen, to know what is late
	opened string // the task and stream of the output shown
	leave  context.CancelFunc

	lent   atomic.Bool // a command has the terminal
	dialog *dialog     // nil for none
	next   tea.Cmd     // what a key begins; nil for nothing
	help   bool
	notice notice
	failed error // why it ends by itself
}

// notice is a short message that goes away by itself.
type notice struct {
	text  string
	bad   bool
	until time.Time
}

// noticeTime is how long a message stays.
const noticeTime = 8 * time.Second

// The streams of a task.
const (
	stdout = "stdout"
	stderr = "stderr"
)

var _ tea.Model = (*Model)(nil)

// newModel makes the screen of an allocation. The work is the owner of its commands.
func newModel(c Config, w *work) *Model {
	m := &Model{Config: c, work: w, now: c.Now, since: c.Now, stream: stdout, width: 80, height: 24, leave: func() {}}
	for i := range m.panels {
		m.panels[i] = panel{text: buffer{clean: m.clean()}, follow: panelKind(i) != checksPanel}
	}
	return m
}

func (m *Model) clean() cleaner { return cleaner{ascii: m.Terminal.ASCII} }

// Init begins to look at the allocation.
func (m *Model) Init() tea.Cmd {
	return tea.Batch(m.clock(), m.readAllocation(0, 0), m.poll(0))
}

// Update changes the screen by a message. Then the output is that of the chosen task and stream.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	return m, tea.Batch(m.update(msg), m.follow())
}

func (m *Model) update(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		m.key(msg)
		next := m.next
		m.next = nil
		return next
	case tea.PasteMsg: // it is never taken for keys, nor for the answer to a question
		if m.dialog != nil && !m.dialog.confirm {
			m.dialog.add(msg.Content)
		}
	case clockMsg:
		m.now = time.Time(msg)
		return m.clock()
	case snapshotMsg:
		return m.seen(msg)
	case pollMsg:
		return m.polled(msg)
	case outputMsg:
		return m.outputRead(msg)
	case actionMsg:
		if msg.err != nil {
			m.say(fmt.Sprintf("%s: %v", msg.what, msg.err), true)
		} else {
			m.say(msg.what+": done", false)
		}
	case panicMsg:
		m.failed = msg.err
		return tea.Quit
	}
	return nil
}

// seen takes over a version of the allocation, or that there is none.
func (m *Model) seen(s snapshotMsg) tea.Cmd {
	if s.err != nil {
		if m.presence == running {
			m.become(away)
		}
		m.why = s.err.Error()
		return m.readAllocation(0, awayPause)
	}
	if m.presence == ended && !s.Ended { // it is run again
		m.opened = ""
	}
	if s.Ended {
		m.become(ended)
	} else {
		m.become(running)
	}
	m.alloc = s.Alloc
	m.arrange()
	m.tellEvents()
	m.tellChecks()
	if s.Ended {
		m.usage, m.usageErr = nil, ErrUnavailable
		return m.readAllocation(0, endedPause)
	}
	return m.readAllocation(s.Index, allocPause)
}

func (m *Model) become(p presence) {
	if m.presence != p {
		m.presence, m.since = p, m.now
	}
}

// polled takes over the usage and the checks. Values that could not be read stay as they were.
func (m *Model) polled(p pollMsg) tea.Cmd {
	if m.presence != ended {
		m.usageErr, m.checksErr = p.usageErr, p.checksErr
		if p.usageErr == nil {
			m.usage = p.usage
		} else if errors.Is(p.usageErr, ErrUnavailable) {
			m.usage = nil
		}
		if p.checksErr == nil {
			m.checks = p.checks
		}
		m.arrange()
		m.tellChecks()
	}
	return m.poll(pollPause)
}

// follow opens the output of the chosen task and stream, unless it is open already.
func (m *Model) follow() tea.Cmd {
	if m.chosen == "" || m.opened == m.chosen+" "+m.stream {
		return nil
	}
	pause := chosenPause
	if m.opened == "" {
		pause = 0
	}
	m.leave()
	m.opened = m.chosen + " " + m.stream
	p := m.output()
	p.text.reset()
	p.top, p.column, p.follow, p.note = 0, 0, true, "opening"
	return m.open(pause)
}

// open opens the output again, after a pause.
func (m *Model) open(pause time.Duration) tea.Cmd {
	m.choice++
	ctx, leave := context.WithCancel(m.work.context)
	m.leave = leave
	return m.openOutput(ctx, m.choice, m.chosen, m.stream, pause)
}

func (m *Model) output() *panel { return &m.panels[outputPanel] }

// outputRead adds a part of the output, if it is still that of the chosen task, and reads on.
func (m *Model) outputRead(o outputMsg) tea.Cmd {
	if o.choice != m.choice {
		return nil
	}
	m.output().note = ""
	switch {
	case o.err != nil && o.output == nil:
		m.output().note = m.clean().text(o.err.Error())
		m.leave()
		return m.open(awayPause)
	case errors.Is(o.err, io.EOF):
		m.output().note = "removed"
		return nil
	case o.err != nil:
		m.output().note = m.clean().text(o.err.Error())
		return m.readOutput(o.choice, o.output, awayPause)
	case len(o.chunk.Text) == 0:
		return m.readOutput(o.choice, o.output, 0)
	}
	if o.chunk.Gap {
		m.output().text.note("[output is missing here: it came faster than it can be shown]")
	}
	m.output().text.write(o.chunk.Text)
	return m.readOutput(o.choice, o.output, outputPause)
}

// say shows a message for a while.
func (m *Model) say(text string, bad bool) {
	m.notice = notice{m.clean().text(text), bad, m.now.Add(noticeTime)}
}

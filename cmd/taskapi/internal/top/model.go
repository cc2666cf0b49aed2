package top

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"

	"taskapi/cmd/taskapi/internal/top/tasktext"
)

// Model is the screen with its keys: a list of allocations or, inside of one, its tasks. It is a bubbletea model, which
// only messages change.
type Model struct {
	Config
	work    *work
	now     time.Time
	watches []*watch // in the order in which they were found
	looked  bool     // for allocations, at least once
	lookErr error    // of the last look
	list    list
	inside  *inside // nil while the list is shown

	width, height int
	drawn         tea.View // the screen as it was drawn last
	zones         []zone   // of that
	stale         bool     // it is to be drawn again
	refreshing    bool     // it will be soon
	noMouse       bool     // the terminal keeps the mouse
	still         bool     // there is only one moment to show

	lent   atomic.Bool // a command has the terminal
	dialog *dialog     // nil for none
	next   tea.Cmd     // what a key begins; nil for nothing
	help   bool
	notice notice
	failed error // why it ends by itself
	choice int   // counts the outputs that were opened, to know what is late
}

type notice struct {
	text  string
	bad   bool
	until time.Time
}

// noticeTime is how long a message stays.
const noticeTime = 8 * time.Second

var _ tea.Model = (*Model)(nil)

// newModel makes a screen. The work is the owner of its commands.
func newModel(c Config, w *work) *Model {
	m := &Model{Config: c, work: w, now: c.Clock(), width: 80, height: 24, stale: true}
	m.list.Model = m
	return m
}

// Close closes the sources. The work has ended.
func (m *Model) Close() {
	for _, w := range m.watches {
		w.source.Close()
	}
}

func (m *Model) clean() tasktext.Cleaner { return tasktext.Cleaner{ASCII: m.Terminal.ASCII} }

// Init begins to look for allocations.
func (m *Model) Init() tea.Cmd { return tea.Batch(m.clock(), m.find(0)) }

// Update changes the screen by a message, and begins what is to be read then.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	if p, ok := msg.(pollMsg); ok {
		return m, m.polled(p)
	}
	m.stale = true
	cmds := []tea.Cmd{m.update(msg), m.resume()}
	if m.inside != nil {
		cmds = append(cmds, m.inside.follow())
	}
	return m, tea.Batch(cmds...)
}

// settleTime is how long after a change of its size a terminal may still lose lines that were drawn: tmux, for one,
// tells programs its sizes a quarter of a second late. Then everything is drawn once more.
const settleTime = 400 * time.Millisecond

func (m *Model) update(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		resized := m.width > 0
		m.width, m.height = msg.Width, msg.Height
		if resized {
			return tea.Tick(settleTime, func(time.Time) tea.Msg { return tea.ClearScreen() })
		}
	case tea.KeyPressMsg:
		m.key(msg)
		return m.begun()
	case tea.MouseClickMsg:
		m.click(tea.Mouse(msg))
		return m.begun()
	case tea.MouseWheelMsg:
		m.wheel(tea.Mouse(msg))
	case tea.PasteMsg: // it is never taken for keys, nor for the answer to a question
		if m.dialog != nil && !m.dialog.confirm {
			m.dialog.add(msg.Content)
			m.dialog.changed()
		}
	case clockMsg:
		m.now = time.Time(msg)
		if m.inside != nil {
			m.inside.pass()
		}
		return m.clock()
	case foundMsg:
		m.found(msg)
		if m.inside != nil && m.inside.presence == running {
			return m.find(restPause)
		}
		return m.find(findPause)
	case snapshotMsg:
		return m.seen(msg)
	case refreshMsg:
		m.refreshing = false
		m.arrange(nil)
	case openedMsg, outputMsg:
		if m.inside != nil {
			return m.inside.outputs(msg)
		}
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

// polled takes over what a poll says. Many polls come at once, so the screen is drawn once for all of them.
func (m *Model) polled(p pollMsg) tea.Cmd {
	w := p.watch
	w.polled(p, m.now)
	inSight := m.inside == nil || m.inside.watch == w
	if w.polling = inSight && !w.gone && w.presence != ended; !w.polling { // resume begins it again
		return nil
	}
	next := m.poll(w, pollPause*time.Duration(max(m.live(), crowd))/crowd)
	if m.refreshing {
		return next
	}
	m.refreshing = true
	return tea.Batch(next, tea.Tick(refreshPause, func(time.Time) tea.Msg { return refreshMsg{} }))
}

// begun returns what a key has begun.
func (m *Model) begun() tea.Cmd {
	next := m.next
	m.next = nil
	return next
}

// live returns how many allocations are polled.
func (m *Model) live() (n int) {
	if m.inside != nil {
		return 1
	}
	for _, w := range m.watches {
		if w.presence != ended {
			n++
		}
	}
	return n
}

func (m *Model) found(f foundMsg) {
	m.lookErr = f.err
	if f.err != nil && len(f.all) == 0 {
		return
	}
	m.watches = slices.DeleteFunc(m.watches, func(w *watch) bool {
		w.gone = !slices.ContainsFunc(f.all, func(f Found) bool { return f.ID == w.ID && f.Dir == w.Dir })
		if w.gone {
			w.source.Close()
		}
		return w.gone
	})
	for _, f := range f.all {
		i := slices.IndexFunc(m.watches, func(w *watch) bool { return f.ID == w.ID && f.Dir == w.Dir })
		if i < 0 {
			i, m.watches = len(m.watches), append(m.watches, newWatch(f, m.now))
		}
		m.watches[i].found(f, m.now)
		if !m.looked && f.ID == m.Start {
			m.enter(m.watches[i])
		}
	}
	m.looked = true
	m.arrange(nil)
}

// seen takes over a version of an allocation, or that there is none.
func (m *Model) seen(s snapshotMsg) tea.Cmd {
	w := s.watch
	before := w.presence
	if s.err != nil {
		w.failed(s.Alloc, s.err, m.now)
	} else {
		w.saw(s.Snapshot, m.now)
	}
	if before == ended && w.presence == running && m.inside != nil && m.inside.watch == w { // it is run again
		m.inside.opened = ""
	}
	m.arrange(w)
	switch {
	case w.gone || w.presence == ended:
		w.reading = false
		return nil
	case s.err != nil && m.inside == nil:
		return m.readAllocation(w, 0, findPause)
	case s.err != nil:
		return m.readAllocation(w, 0, awayPause)
	}
	return m.readAllocation(w, s.Index, allocPause)
}

// arrange brings what is shown up to date with a watch, or with all of them.
func (m *Model) arrange(of *watch) {
	if m.inside == nil {
		m.list.arrange()
	} else if of == nil || of == m.inside.watch {
		m.inside.arrange()
	}
}

func (m *Model) enter(w *watch) {
	m.inside = newInside(m, w)
	m.inside.arrange()
}

func (m *Model) leave() {
	m.inside.close()
	if w := m.inside.watch; !w.gone {
		m.list.chosen = w.key()
	}
	m.inside = nil
	m.list.arrange()
}

func (m *Model) say(text string, bad bool) {
	m.notice = notice{m.clean().Text(text), bad, m.now.Add(noticeTime)}
}

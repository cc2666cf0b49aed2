package main

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/identity"
)

// heldLock is a claim as an agent has it.
type heldLock struct{ *claim }

var _ agent.Lock = heldLock{}

func (c heldLock) Saved() *interfaces.Saved            { return c.saved }
func (c heldLock) Life() string                        { return c.life }
func (c heldLock) State() interfaces.State             { return c.kept() }
func (c heldLock) TryRecreate() error                  { return c.tryAnew() }
func (c heldLock) Recreate(next *api.Allocation) error { return c.anew(next) }
func (c heldLock) FinishReplacement() error            { return c.concludes() }

// agentEvents prints the events of an agent, whose log has its last lines written with them.
type agentEvents struct {
	*printer
	log    *linewriter.Writer
	layout layout
}

var _ agent.Events = agentEvents{}

func (e agentEvents) TaskEvent(task string, event *api.TaskEvent) { e.taskEvent(task, event) }
func (e agentEvents) AllocEvent(kind, message string, pairs ...string) {
	e.allocEvent(kind, message, pairs...)
}
func (e agentEvents) Ended(alloc *api.Allocation, why string) { e.ended(alloc, why) }
func (e agentEvents) Fit(alloc *api.Allocation)               { e.fit(alloc) }
func (e agentEvents) Flush()                                  { flushAll(e.queue, e.log) }
func (e agentEvents) Announce(kind string, alloc *api.Allocation) {
	e.announce(time.Now(), kind, alloc, e.layout)
}

// agentConfig is what every agent of this process has in common.
func agentConfig(c *claim, settings agent.Settings, p *printer, log *linewriter.Writer, w world) agent.Config {
	l := c.layout
	return agent.Config{
		Settings: settings,
		Paths: agent.Paths{
			Alloc:          c.dir,
			OperatorSocket: l.operatorSocket(c.id),
			OperatorToken:  l.operatorToken(c.id),
			TaskSocket:     func(task string) string { return l.taskSocket(c.id, task) },
		},
		Lock:       heldLock{c},
		Keyring:    func() (*identity.Keyring, error) { return l.openKeyring(settings.SealKey) },
		Events:     agentEvents{p, log, l},
		Logger:     c.logger,
		Version:    version,
		RuntimeDir: w.getenv("XDG_RUNTIME_DIR"),
		TuneGC:     w.getenv("GOGC") == "", // which is the operator's word
		Resume:     fmt.Sprintf("'%s' %s", l.command("run", "--alloc-id", c.id), withJobFile),
	}
}

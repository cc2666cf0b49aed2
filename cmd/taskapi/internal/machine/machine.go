// Package machine serves the API of a whole machine: of all allocations in a data directory, those that have ended,
// too. Each allocation stays a process of its own. This process follows them, and passes requests on to their
// operators' sockets. It also starts, updates and stops allocations, and resumes those whose taskapi has exited. It
// keeps nothing that is lost when it is killed.
package machine

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/fleet"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/hoststats"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/handlers"
	"taskapi/handlers/machine"
	"taskapi/handlers/node"
	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/filewatch"
)

// Config has the parts of a Machine. All but Listen, Environ and Notify are required.
type Config struct {
	Dir         datadir.Dir
	Settings    agent.Settings
	Keyring     *identity.Keyring
	Revocations *revocation.List
	Cluster     cluster.Store // what the allocations share
	Logger      *slog.Logger
	Log         node.AgentLog // what Logger logs, for clients
	Version     string        // of the program

	Environ   []string // of the commands that start allocations
	RunFlags  []string // of the runs that a registration starts
	Listen    *TLS     // where else than on the socket to answer; nil for nowhere
	Clustered bool     // other machines use Cluster, too
	Resume    bool     // resume the allocations whose taskapi has exited
	Notify    func(state string)

	// Again returns the record with which the commands run an allocation again.
	Again func(settings.Record) (settings.Record, error)
}

// Machine follows all allocations of a data directory.
type Machine struct {
	cfg  Config
	self *self
	http *http.Transport // by allocation
	dirs filewatch.Watcher
	disk func(dir string) (*api.HostDiskStats, error)

	fleet *fleet.Fleet // nil without other machines

	follows sync.WaitGroup

	mu          sync.Mutex // guards the fields below
	entries     map[string]*entry
	index       uint64
	changed     chan struct{}            // closed and replaced when the index grows
	registering map[string]*registration // by job: its registration, while that is under way
	stopping    map[string]int           // by job: the stops of it that are being recorded
	fleetIndex  uint64                   // of the latest answer of fleet
}

var _ machine.Machine = (*Machine)(nil)

// entry is the latest known state of an allocation.
type entry struct {
	alloc *api.Allocation // as its process answers, or as it was saved; once it has ended, what newEnded keeps
	ended bool
	token bool // it has ended, and was dispatched with an idempotency token
}

// New returns a Machine that follows nothing yet.
func New(c Config) *Machine {
	m := &Machine{cfg: c, entries: map[string]*entry{}, changed: make(chan struct{}),
		registering: map[string]*registration{}, stopping: map[string]int{}, disk: hoststats.Disk}
	m.grow()
	if c.Clustered {
		m.fleet = fleet.New(c.Cluster)
	}
	m.self = newSelf(m)
	m.http = newTransport(c.Dir)
	return m
}

// Run follows the allocations and serves the API until ctx ends. The allocations run on.
func (m *Machine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.http.CloseIdleConnections()
	defer m.follows.Wait()
	defer cancel()
	m.self.ctx = ctx
	dir, err := os.Open(m.cfg.Dir.Allocs())
	if err != nil {
		return fmt.Errorf("allocations: %w", agent.UnwrapPath(err))
	}
	defer dir.Close()
	watch, err := m.dirs.Dir(dir)
	var tick <-chan time.Time
	if err != nil {
		m.cfg.Logger.Warn("the kernel reports no changes of files, so allocations are looked for every second: raise "+
			"fs.inotify.max_user_instances", "error", err)
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		tick = ticker.C
	}
	defer watch.Close()
	if err := m.look(ctx); err != nil {
		return err
	}
	server, err := m.serve(ctx)
	if err != nil {
		return err
	}
	defer server.close()
	m.follows.Go(func() { m.collectEnded(ctx) })
	m.cfg.Notify(fmt.Sprintf("READY=1\nSTATUS=serving %s", m.cfg.Dir))
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-server.failed:
			return err
		case <-watch.Changed():
		case <-tick:
		}
		if err := m.look(ctx); err != nil {
			m.cfg.Logger.Warn("allocations that have begun are not seen yet", "error", err)
		}
	}
}

// look begins to follow new allocations, and forgets those whose directory is gone.
func (m *Machine) look(ctx context.Context) error {
	ids, err := m.cfg.Dir.IDs()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	there := make(map[string]bool, len(ids))
	for _, id := range ids {
		there[id] = true
		if m.entries[id] == nil {
			if alloc := m.endedOf(id); alloc != nil {
				m.entries[id] = newEnded(alloc)
				continue
			}
			m.entries[id] = &entry{}
			m.followLocked(ctx, id)
		}
	}
	for id := range m.entries {
		if !there[id] {
			delete(m.entries, id)
			m.growLocked()
		}
	}
	return nil
}

// endedOf returns an allocation that has ended; nil for any other.
func (m *Machine) endedOf(id string) *api.Allocation {
	if path := m.cfg.Dir.State(id); state.Ended(path) {
		if dump, err := state.Inspect(path); err == nil && dump.Saved.Alloc != nil && dump.Saved.Alloc.ID == id {
			return dump.Saved.Alloc
		}
	}
	return nil
}

// grow gives the machine its next index. The index is a time in milliseconds. So it also grows over restarts of this
// process, and no list of another process has the same index.
func (m *Machine) grow() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.growLocked()
}

func (m *Machine) growLocked() {
	m.index = max(m.index+1, uint64(time.Now().UnixMilli()))
	close(m.changed)
	m.changed = make(chan struct{})
}

// Index is the machine's.
func (m *Machine) Index() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index
}

// Wait returns once the index is above after, or when ctx ends.
func (m *Machine) Wait(ctx context.Context, after uint64) {
	ctx, end := context.WithCancel(ctx)
	var fleet sync.WaitGroup
	defer fleet.Wait()
	defer end()
	if m.fleet != nil {
		fleet.Go(func() { m.watchFleet(ctx) })
	}
	for {
		m.mu.Lock()
		index, changed := m.index, m.changed
		m.mu.Unlock()
		if index > after {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Self stands for the machine.
func (m *Machine) Self() handlers.Alloc { return m.self }

// Allocations returns all allocations.
func (m *Machine) Allocations(ctx context.Context) ([]*api.Allocation, error) {
	return m.read(ctx, func(*api.Allocation) bool { return true })
}

// OfJob returns the allocations of a job.
func (m *Machine) OfJob(ctx context.Context, namespace, job string) ([]*api.Allocation, error) {
	all, err := m.read(ctx, func(alloc *api.Allocation) bool {
		return alloc.JobID == job && (namespace == "" || namespace == "*" || alloc.Namespace == namespace)
	})
	machine.Sort(all)
	return all, err
}

// catchUp looks for allocations that have begun just now: a client that has begun one finds it in the next answer.
func (m *Machine) catchUp(ctx context.Context) error { return m.catchUpWithin(ctx, client.Timeouts{}) }

// catchUpWithin is catchUp with some time for allocations that are starting or ending.
func (m *Machine) catchUpWithin(ctx context.Context, t client.Timeouts) error {
	if err := m.look(m.self.ctx); err != nil {
		return err
	}
	var unknown []string
	m.mu.Lock()
	for id, e := range m.entries {
		if e.alloc == nil {
			unknown = append(unknown, id)
		}
	}
	m.mu.Unlock()
	for _, id := range unknown {
		c := client.New(m.cfg.Dir, id)
		if found := c.Locate(ctx, t); found.Alloc != nil {
			m.set(id, found.Alloc, found.Holder == client.Ended)
		}
		c.Close()
	}
	return ctx.Err()
}

// read returns the allocations that a function selects. Those that have ended are read from the disk.
func (m *Machine) read(ctx context.Context, selects func(*api.Allocation) bool) (all []*api.Allocation, err error) {
	if err := m.catchUp(ctx); err != nil {
		return nil, err
	}
	var ended []string
	m.mu.Lock()
	for id, e := range m.entries {
		switch {
		case e.alloc == nil || !selects(e.alloc):
		case e.ended:
			ended = append(ended, id)
		default:
			all = append(all, e.alloc)
		}
	}
	m.mu.Unlock()
	for _, id := range ended {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		dump, err := state.Inspect(m.cfg.Dir.State(id))
		if err != nil || dump.Saved.Alloc == nil {
			continue // it is being removed, or damaged
		}
		if !dump.Saved.Terminal {
			m.again(id)
		}
		all = append(all, dump.Saved.Alloc)
	}
	return all, nil
}

// again follows an allocation that had ended, and runs again under the same ID.
func (m *Machine) again(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[id]; e != nil && e.ended && m.self.ctx.Err() == nil {
		e.ended = false
		m.followLocked(m.self.ctx, id)
	}
}

// Find returns an allocation.
func (m *Machine) Find(ctx context.Context, id string) (*machine.Found, error) {
	m.mu.Lock()
	unknown := m.entries[id] == nil || m.entries[id].alloc == nil
	m.mu.Unlock()
	if unknown {
		if err := m.catchUp(ctx); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	e := m.entries[id]
	var alloc *api.Allocation
	ended := false
	if e != nil {
		alloc, ended = e.alloc, e.ended
	}
	m.mu.Unlock()
	if alloc == nil {
		return nil, nil
	}
	dump, err := state.Inspect(m.cfg.Dir.State(id))
	if err == nil && dump.Saved.Alloc != nil && dump.Saved.Terminal {
		over, err := m.over(dump.Saved)
		if err != nil {
			return nil, err
		}
		if !ended && m.listens(id) { // its process still answers
			return &machine.Found{Alloc: alloc}, nil
		}
		return &machine.Found{Alloc: dump.Saved.Alloc, Ended: over}, nil
	}
	if ended {
		m.again(id)
	}
	return &machine.Found{Alloc: alloc}, nil
}

// set stores the latest known state of an allocation.
func (m *Machine) set(id string, alloc *api.Allocation, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[id]
	if e == nil { // it has been removed
		return
	}
	if !ended && !e.ended && e.alloc != nil && alloc != nil && alloc.ModifyIndex < e.alloc.ModifyIndex &&
		alloc.CreateTime == e.alloc.CreateTime {
		return // an answer that was overtaken
	}
	same := e.ended == ended && e.alloc != nil && alloc != nil && e.alloc.ModifyIndex == alloc.ModifyIndex
	if ended && alloc != nil {
		*e = *newEnded(alloc)
	} else {
		*e = entry{alloc: alloc, ended: ended}
	}
	if !same {
		m.growLocked()
	}
}

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/wake"
)

// The times of a Publisher.
const (
	attemptTime = 5 * time.Second // for one write
	// coalesceTime is the shortest time between two writes of an allocation whose state stays the same.
	coalesceTime = 5 * time.Second
	endTime      = time.Second // for the write of an allocation's end
)

// Source is the allocation that is published.
type Source interface {
	// Alloc returns the latest version; ModifyIndex grows with every change.
	Alloc() *api.Allocation
	// Wait returns the allocation once its ModifyIndex is above index, or as it is when ctx ends.
	Wait(ctx context.Context, index uint64) *api.Allocation
}

// NodeLease returns the owner of the lease that a machine's entries end with. Each process of the machine holds it.
func NodeLease(id string) string { return "node/" + id }

// Publisher publishes one allocation, and the machine that runs it.
type Publisher struct {
	Store  cluster.Store
	Logger *slog.Logger
	Alloc  Source
	Node   func() *api.Node // with its ID and name
}

// Run publishes until ctx ends. The entries then end with this process's leases.
func (p *Publisher) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	node := p.Node()
	value := encodeNode(node)
	work.Go(func() {
		e := &entry{Publisher: p, key: nodesPrefix + node.ID, lease: NodeLease(node.ID)}
		defer e.release()
		e.publish(ctx, value, func(ctx context.Context) []byte {
			<-ctx.Done()
			return value
		})
	})
	latest := p.Alloc.Alloc()
	e := &entry{Publisher: p, key: allocsPrefix + latest.ID, lease: latest.ID}
	defer e.release()
	e.publish(ctx, encodeAlloc(latest), func(ctx context.Context) []byte {
		latest = p.next(ctx, latest)
		return encodeAlloc(latest)
	})
	ending, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_ = e.write(ending, encodeAlloc(p.Alloc.Alloc())) // for those who follow it; the entry ends with the lease in any case
}

// next waits for another version that is to be written: at once when the state has changed, else after coalesceTime. It
// returns the latest version when ctx ends.
func (p *Publisher) next(ctx context.Context, before *api.Allocation) *api.Allocation {
	now := p.Alloc.Wait(ctx, before.ModifyIndex)
	ctx, cancel := context.WithTimeout(ctx, coalesceTime)
	defer cancel()
	for ctx.Err() == nil && stateOf(now) == stateOf(before) {
		now = p.Alloc.Wait(ctx, now.ModifyIndex)
	}
	return now
}

// state is the part of an allocation whose changes are published at once.
type state struct {
	client, desired string
	tasks           string
	healthy         bool
}

func stateOf(a *api.Allocation) state {
	s := state{client: a.ClientStatus, desired: a.DesiredStatus}
	tasks := make(map[string]string, len(a.TaskStates))
	for name, t := range a.TaskStates {
		if t != nil {
			tasks[name] = fmt.Sprint(t.State, t.Failed, t.Restarts)
		}
	}
	s.tasks = fmt.Sprint(tasks) // sorted by key
	s.healthy = a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && *a.DeploymentStatus.Healthy
	return s
}

// entry is one entry of a Publisher, with the lease that it ends with.
type entry struct {
	*Publisher
	key, lease string

	held  cluster.Lease // nil before the first write
	index uint64        // of the latest write, or of the look that found it written
}

// publish writes a value, the values that follow it, and again one that was lost, until ctx ends. change waits for the
// next value, and returns the latest when its context ends.
func (e *entry) publish(ctx context.Context, value []byte, change func(context.Context) []byte) {
	for ctx.Err() == nil {
		e.keep(ctx, value)
		waiting, cancel := context.WithCancel(ctx)
		var loss sync.WaitGroup
		loss.Go(func() {
			e.awaitLoss(waiting, e.index)
			cancel()
		})
		value = change(waiting)
		cancel()
		loss.Wait()
	}
}

// newPauses returns the pauses between attempts.
func newPauses() wake.Backoff {
	return wake.Backoff{First: 200 * time.Millisecond, Last: 10 * time.Second}
}

// keep writes the value unless it is there, and tries until it has succeeded or ctx ends.
func (e *entry) keep(ctx context.Context, value []byte) {
	for pauses := newPauses(); ; {
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		err := e.write(attempt, value)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		e.Logger.Debug("other machines don't see this one's state yet; taskapi tries again", "key", e.key, "error", err)
		if pauses.Sleep(ctx) != nil {
			return
		}
	}
}

// write makes the entry have the value, and this process hold its lease.
func (e *entry) write(ctx context.Context, value []byte) (err error) {
	if e.held == nil {
		if e.held, err = e.Store.Hold(ctx, e.lease); err != nil {
			return err
		}
	}
	there, index, err := e.Store.Get(ctx, e.key)
	if err == nil && (there.ModifyIndex == 0 || !bytes.Equal(there.Value, value)) {
		index, err = e.Store.Commit(ctx, cluster.Txn{
			Then: []cluster.Operation{{Key: e.key, Value: value, Lease: e.lease}},
		})
	}
	switch {
	case err == nil:
		e.index = index
	case errors.Is(err, cluster.ErrLeaseEnded):
		e.release()
	}
	return err
}

// awaitLoss returns when the entry is gone after an index, or when ctx ends.
func (e *entry) awaitLoss(ctx context.Context, after uint64) {
	for pauses := newPauses(); ctx.Err() == nil; {
		changes, err := e.Store.Watch(ctx, e.key, after)
		if err == nil {
			after = changes.Index
			pauses.Reset()
			var there cluster.Entry
			if there, _, err = e.Store.Get(ctx, e.key); err == nil && there.ModifyIndex == 0 {
				return
			}
		}
		if err != nil {
			_ = pauses.Sleep(ctx) // the loop sees that ctx has ended
		}
	}
}

func (e *entry) release() {
	if e.held != nil {
		_ = e.held.Close() // it ends with the process at the latest
		e.held = nil
	}
}

// encodeAlloc returns the allocation as it is published: what a list shows. The rest, such as the environment of tasks,
// leaves the machine for nobody.
func encodeAlloc(whole *api.Allocation) []byte {
	alloc := *whole
	if job := whole.Job; job != nil {
		alloc.Job = &api.Job{
			ID: job.ID, Name: job.Name, Namespace: job.Namespace, Region: job.Region, Type: job.Type, Version: job.Version,
			Stop: job.Stop, ParentID: job.ParentID,
		}
	}
	if whole.TaskStates != nil {
		alloc.TaskStates = make(map[string]*api.TaskState, len(whole.TaskStates))
		for name, all := range whole.TaskStates {
			if all == nil {
				continue
			}
			s := *all
			if n := len(s.Events); n > 1 {
				s.Events = s.Events[n-1:]
			}
			alloc.TaskStates[name] = &s
		}
	}
	return encode(&alloc)
}

// encodeNode returns a node as it is published, without the figures that change from second to second.
func encodeNode(whole *api.Node) []byte {
	n := *whole
	n.Attributes = map[string]string{}
	for key, value := range whole.Attributes {
		if key != "unique.storage.bytesfree" {
			n.Attributes[key] = value
		}
	}
	n.Drivers = map[string]*api.DriverInfo{}
	for name, driver := range whole.Drivers {
		d := *driver
		d.UpdateTime = time.Time{}
		n.Drivers[name] = &d
	}
	if whole.NodeResources != nil {
		r := *whole.NodeResources
		r.Disk.DiskMB = 0
		n.NodeResources = &r
	}
	return encode(&n)
}

func encode(v any) []byte {
	value, _ := json.Marshal(v) // neither type has anything without JSON
	return value
}

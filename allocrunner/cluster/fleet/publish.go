package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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

// Publisher publishes one allocation, and the machine that runs it.
type Publisher struct {
	Store  cluster.Store
	Logger *slog.Logger
	Alloc  Source
	Node   func() *api.Node // with its ID and name
}

// Run publishes until ctx ends. The entries then end with the allocation's lease, which the store writes them again
// with while Run holds it.
func (p *Publisher) Run(ctx context.Context) {
	latest, node := p.Alloc.Alloc(), p.Node()
	w := &writer{Publisher: p, id: latest.ID, node: node.ID, machine: encodeNode(node)}
	defer w.release()
	for ctx.Err() == nil {
		p.await(ctx, w.keep(ctx))
	}
	ending, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_ = w.write(ending, p.Alloc.Alloc()) // for those who follow it; the entry ends with the lease in any case
}

// await waits until another version is to be written: at once when the state has changed, else after coalesceTime.
func (p *Publisher) await(ctx context.Context, before *api.Allocation) {
	now := p.Alloc.Wait(ctx, before.ModifyIndex)
	ctx, cancel := context.WithTimeout(ctx, coalesceTime)
	defer cancel()
	for ctx.Err() == nil && stateOf(now) == stateOf(before) {
		now = p.Alloc.Wait(ctx, now.ModifyIndex)
	}
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

// writer writes the entries of a Publisher.
type writer struct {
	*Publisher
	id, node string
	machine  []byte // as it is published; nil once it has been
	written  []byte // the allocation as it was published last

	held cluster.Lease // nil before the first write
}

// keep writes the latest version, and tries until it has succeeded or ctx ends. It returns the version.
func (w *writer) keep(ctx context.Context) *api.Allocation {
	for pauses := (wake.Backoff{First: 200 * time.Millisecond, Last: 10 * time.Second}); ; {
		latest := w.Alloc.Alloc()
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		err := w.write(attempt, latest)
		cancel()
		if err == nil || ctx.Err() != nil {
			return latest
		}
		w.Logger.Debug("other machines don't see this one's state yet; taskapi tries again", "error", err)
		if pauses.Sleep(ctx) != nil {
			return latest
		}
	}
}

// write makes the store have a version, and this process hold the lease that it ends with.
func (w *writer) write(ctx context.Context, alloc *api.Allocation) (err error) {
	if w.held == nil {
		if w.held, err = w.Store.Hold(ctx, w.id); err != nil {
			return err
		}
	}
	value := encodeAlloc(alloc)
	if bytes.Equal(value, w.written) {
		return nil
	}
	txn := cluster.Txn{Then: []cluster.Operation{{Key: allocsPrefix + w.id, Value: value, Lease: w.id}}}
	if w.machine != nil {
		key := nodesPrefix + w.node + "/" + w.id
		txn.Then = append(txn.Then, cluster.Operation{Key: key, Value: w.machine, Lease: w.id})
	}
	_, err = w.Store.Commit(ctx, txn)
	switch {
	case err == nil:
		w.written, w.machine = value, nil
	case errors.Is(err, cluster.ErrLeaseEnded):
		w.release()
	}
	return err
}

func (w *writer) release() {
	if w.held != nil {
		_ = w.held.Close() // it ends with the process at the latest
		w.held = nil
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

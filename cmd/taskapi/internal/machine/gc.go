package machine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/children"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
	"taskapi/internal/wake"
)

// collectEnded removes ended allocations as the settings say, until ctx ends. 'taskapi gc' does the work: what it
// refuses stays.
func (m *Machine) collectEnded(ctx context.Context) {
	interval := m.cfg.Settings.GC.Interval
	said := map[string]string{} // the latest error about each allocation, and about others
	for interval > 0 && wake.Sleep(ctx, interval) == nil {
		m.collectOnce(ctx, func(what string, err error) {
			switch {
			case err == nil:
				delete(said, what)
			case ctx.Err() == nil && said[what] != err.Error(): // which says it once
				said[what] = err.Error()
				m.cfg.Logger.Warn("ended allocations are not removed", "what", what, "error", err)
			}
		})
	}
}

// collectOnce removes what is to be removed now, one allocation after another. It reports the result for each ID, and
// those of the steps before.
func (m *Machine) collectOnce(ctx context.Context, report func(what string, err error)) {
	gc := m.cfg.Settings.GC
	tried := map[string]bool{}
	report("leftovers", m.cfg.Dir.RemoveLeftovers()) // of a removal that was cut short
	for {
		err := m.look(ctx)
		disk, unknown := m.disk(string(m.cfg.Dir))
		err = errors.Join(err, unknown)
		report("directory", err)
		if err != nil || ctx.Err() != nil {
			return
		}
		ended, live := m.ended(tried)
		id, why := gc.Next(ended, live, *disk, time.Now())
		if id == "" {
			return
		}
		tried[id] = true
		if !m.removable(id) {
			continue
		}
		removed := m.command(ctx, nil, "gc", "--data-dir="+string(m.cfg.Dir), id)
		if report(id, removed); removed == nil {
			m.cfg.Logger.Info("removed an ended allocation", "alloc", id, "reason", why)
		}
	}
}

// ended returns the allocations that have ended and may be removed, and the jobs of all others. Those in kept are among
// the others, and keep no job alive.
func (m *Machine) ended(kept map[string]bool) (ended []datadir.EndedAlloc, others []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.entries {
		switch {
		case e.alloc == nil || kept[id]:
			others = append(others, "")
		case !e.ended || interfaces.Replaced(e.alloc): // another version of a replaced one may begin
			others = append(others, jobKey(e.alloc.Namespace, e.alloc.JobID))
		default:
			ended = append(ended, datadir.EndedAlloc{ID: id, Job: jobKey(e.alloc.Namespace, e.alloc.JobID),
				End: time.Unix(0, max(e.alloc.ModifyTime, e.alloc.CreateTime)), Token: e.token})
		}
	}
	return ended, others
}

// removable reports whether an allocation is as it was when it ended, has no sticky data, and is not needed by its
// parent: a parent that has not noted the start of a child would start the child again. An allocation that has run
// again since its end is followed.
func (m *Machine) removable(id string) bool {
	alloc := m.endedOf(id)
	m.mu.Lock()
	e := m.entries[id]
	if alloc == nil || e == nil || !e.ended || e.alloc.ModifyTime != alloc.ModifyTime {
		m.mu.Unlock()
		m.again(id)
		return false
	}
	var parents []string
	for id, of := range m.entries {
		if !of.ended && of.alloc != nil && of.alloc.Namespace == alloc.Namespace && alloc.Job != nil &&
			of.alloc.JobID == ptr.Deref(alloc.Job.ParentID) {
			parents = append(parents, id)
		}
	}
	m.mu.Unlock()
	return m.cfg.Dir.StickyLeft(alloc) == nil && !slices.ContainsFunc(parents, func(parent string) bool {
		return children.Starting(m.cfg.Dir.Alloc(parent), id)
	})
}

// newEnded returns the entry of an allocation that has ended, without the parts that take memory.
func newEnded(alloc *api.Allocation) *entry {
	return &entry{ended: true, alloc: &api.Allocation{ID: alloc.ID, Namespace: alloc.Namespace, JobID: alloc.JobID,
		Name: alloc.Name, ClientStatus: alloc.ClientStatus, DesiredDescription: alloc.DesiredDescription,
		CreateTime: alloc.CreateTime, ModifyTime: alloc.ModifyTime},
		token: alloc.Job != nil && ptr.Deref(alloc.Job.DispatchIdempotencyToken) != ""}
}

package machine

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
	"taskapi/internal/wake"
)

// collectEnded removes ended allocations as the settings say, until ctx ends. 'taskapi gc' does the work: what it
// refuses stays.
func (m *Machine) collectEnded(ctx context.Context) {
	interval := m.cfg.Settings.GC.Interval
	said := map[string]string{} // the latest error of each allocation, and of the directory
	for interval > 0 && wake.Sleep(ctx, interval) == nil {
		m.collectOnce(ctx, func(id string, err error) {
			switch {
			case err == nil:
				delete(said, id)
			case ctx.Err() == nil && said[id] != err.Error(): // which says it once
				said[id] = err.Error()
				m.cfg.Logger.Warn("ended allocations are not removed", "alloc", cmp.Or(id, "all"), "error", err)
			}
		})
	}
}

// collectOnce removes what is to be removed now, one allocation after another. It reports each result, and with an
// empty ID that of the preparation.
func (m *Machine) collectOnce(ctx context.Context, report func(id string, err error)) {
	gc := m.cfg.Settings.GC
	tried := map[string]bool{}
	err := m.cfg.Dir.RemoveLeftovers() // of a removal that was cut short
	for {
		if err == nil {
			err = m.look(ctx)
		}
		disk := &api.HostDiskStats{}
		if err == nil {
			disk, err = m.disk(string(m.cfg.Dir))
		}
		report("", err)
		if err != nil || ctx.Err() != nil {
			return
		}
		ended, live := m.ended(tried)
		id, why := gc.Next(ended, live, *disk, time.Now())
		if id == "" {
			return
		}
		tried[id] = true
		saved, _ := m.Saved(id).(*over)
		if saved == nil || !m.stillEnded(id) {
			continue
		}
		removed := saved.Collect(ctx)
		if errors.Is(removed, interfaces.ErrSticky) { // as it should be
			continue
		}
		if report(id, removed); removed == nil {
			m.cfg.Logger.Info("removed an ended allocation", "alloc", id, "reason", why)
		}
	}
}

// ended returns the allocations that have ended and may be removed, and the jobs of all others. Those in kept count
// among the others.
func (m *Machine) ended(kept map[string]bool) (ended []datadir.EndedAlloc, others []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.entries {
		switch {
		case e.alloc == nil:
			others = append(others, "")
		case !e.ended || kept[id] || interfaces.Replaced(e.alloc): // another version of a replaced one may begin
			others = append(others, jobKey(e.alloc.Namespace, e.alloc.JobID))
		default:
			ended = append(ended, datadir.EndedAlloc{ID: id, Job: jobKey(e.alloc.Namespace, e.alloc.JobID),
				End: time.Unix(0, max(e.alloc.ModifyTime, e.alloc.CreateTime)), Token: e.token})
		}
	}
	return ended, others
}

// stillEnded reports whether an allocation is as it was when it ended. One that has run again since is followed.
func (m *Machine) stillEnded(id string) bool {
	now := m.endedOf(id)
	m.mu.Lock()
	e := m.entries[id]
	same := now != nil && e != nil && e.alloc.ModifyTime == now.alloc.ModifyTime
	m.mu.Unlock()
	if !same {
		m.again(id)
	}
	return same
}

// newEnded returns the entry of an allocation that has ended, without the parts that take memory.
func newEnded(alloc *api.Allocation) *entry {
	return &entry{ended: true, alloc: &api.Allocation{ID: alloc.ID, Namespace: alloc.Namespace, JobID: alloc.JobID,
		Name: alloc.Name, ClientStatus: alloc.ClientStatus, DesiredDescription: alloc.DesiredDescription,
		CreateTime: alloc.CreateTime, ModifyTime: alloc.ModifyTime},
		token: alloc.Job != nil && ptr.Deref(alloc.Job.DispatchIdempotencyToken) != ""}
}

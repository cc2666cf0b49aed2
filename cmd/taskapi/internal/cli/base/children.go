package base

import (
	"cmp"
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/state"
	"taskapi/internal/ptr"
)

// Children returns the allocations of a job's children that have not ended, as far as they are known, or all of them
// with ended, the newest first.
func (l Layout) Children(ctx context.Context, parent *api.Allocation, ended bool) (all []Target, err error) {
	ids, err := l.IDs()
	for _, id := range ids {
		if !ended && state.Ended(l.State(id)) {
			continue
		}
		if k := l.Known(ctx, id); IsChild(k.Alloc, parent) && (ended || k.Running) {
			all = append(all, k.Target)
		}
	}
	slices.SortFunc(all, func(a, b Target) int { return cmp.Compare(b.Alloc.CreateTime, a.Alloc.CreateTime) })
	return all, err
}

// IsChild reports whether an allocation is of a child of a job.
func IsChild(alloc, parent *api.Allocation) bool {
	return alloc != nil && alloc.Job != nil && alloc.Namespace == parent.Namespace &&
		ptr.Deref(alloc.Job.ParentID) == parent.JobID
}

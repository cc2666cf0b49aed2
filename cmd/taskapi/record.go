package main

import (
	"context"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// record is the state as two write it: the runner, before it acts, and the buffer of updates, some time after. It never lets an older
// version of the allocation follow a newer one: a stop that was written down stays written down.
type record struct {
	*state.DB

	mu     sync.Mutex // held over writes of the allocation itself; those of tasks alone go by
	newest uint64     // ModifyIndex of what was given to be written last
}

var (
	_ interfaces.State = (*record)(nil)
	_ interfaces.Sink  = (*record)(nil)
)

// Put implements interfaces.State. What was given before and could not be written goes with what is given now.
func (r *record) Put(c interfaces.Change) error {
	if c.Alloc != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if c.Alloc.ModifyIndex < r.newest {
			c.Alloc = nil
		} else {
			r.newest = c.Alloc.ModifyIndex
		}
	}
	return r.DB.Put(c)
}

// PutAllocs implements interfaces.Sink. What the runner has overtaken is left out.
func (r *record) PutAllocs(ctx context.Context, allocs []*api.Allocation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var news []*api.Allocation
	for _, alloc := range allocs { // of one allocation, so there is one index
		if alloc.ModifyIndex >= r.newest { // the runner writes the same one without its tasks' states
			r.newest = alloc.ModifyIndex
			news = append(news, alloc)
		}
	}
	return r.DB.PutAllocs(ctx, news)
}

package start

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/claim"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/settings"
)

// StandBy waits until no other machine runs the allocation, and takes the claim on its name. say prints what it waits
// for. The allocation then follows the one that ran before. The caller closes the store when the allocation has ended
// here. Errors: claim.ErrComplete.
func StandBy(
	ctx context.Context, l base.Layout, alloc *api.Allocation, say func(string),
) (*claim.Claim, cluster.Store, error) {
	store, several := l.OpenShared()
	if !several {
		return nil, nil, base.Usagef("--standby is for machines that share a store: set cluster.address in %s",
			filepath.Join(string(l.Dir), settings.Name))
	}
	held, before, err := claim.Await(ctx, claim.Config{
		Store: store, Name: claim.Name{Namespace: alloc.Namespace, Alloc: alloc.Name},
		Holder: claim.Holder{AllocID: alloc.ID, NodeID: alloc.NodeID, NodeName: alloc.NodeName},
	}, claim.Waiting{
		Holder: func(by claim.Holder) {
			say(fmt.Sprintf("standing by: %s runs on the machine %s, as allocation %s", alloc.Name, by.NodeName, by.AllocID))
		},
		Nobody: func() {
			say(fmt.Sprintf("standing by for %s: it starts in %v unless another machine runs it", alloc.Name, claim.TTL))
		},
		Failed: func(err error) {
			say(fmt.Sprintf("standing by for %s until the store can be used: %v", alloc.Name, err))
		},
	})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	alloc.PreviousAllocation = before.AllocID
	return held, store, nil
}

// releaseTime bounds how long a process that ends waits for the shared store.
const releaseTime = 2 * time.Second

// ReleaseUnbegun gives up the claim of an allocation that could not begin, as on a full disk. Otherwise the machines
// that stand by would wait until the claim ends.
func ReleaseUnbegun(l base.Layout, id string, held *claim.Claim) {
	if saved, err := l.Peek(id); saved != nil || err != nil || allocrunner.ProcessesLeft(l.Alloc(id)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	_ = held.Release(ctx, false) // without the store, the claim ends by itself
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/tokensync"
	"taskapi/internal/wake"
)

// The simulator reports the changes of the allocation with the ID probeID, and of the services and the variable with
// the name probeName.
const (
	probeID   = "00000000-0000-4000-8000-000000000000"
	probeName = "probe"
)

// An opening is a store as one process of taskapi opens it.
type opening struct {
	store    cluster.Store
	services *registry.Feed
}

// openings returns a function that opens the store of an allocation: that of the cluster, as a process of taskapi does,
// or the one in memory that all have. closeAll closes all of them.
func (s *simulator) openings(
	ctx context.Context, background *sync.WaitGroup,
) (open func(i int, alloc string) opening, closeAll func() error) {
	var mu sync.Mutex // guards all
	var all []cluster.Store
	closeAll = func() (err error) {
		for _, store := range all {
			err = errors.Join(err, store.Close())
		}
		return err
	}
	follow := func(store cluster.Store) opening {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, store)
		o := opening{store, registry.New(store).Feed(ctx, *s.job.Namespace)}
		background.Go(func() { o.services.Run(ctx) })
		return o
	}
	if !s.layout.Shares() {
		inMemory := sync.OnceValue(func() opening { return follow(memory.New()) })
		return func(int, string) opening { return inMemory() }, closeAll
	}
	logger := base.NewLogger(false, s.environment)
	return func(i int, alloc string) opening {
		store := s.layout.OpenCluster()
		keys := &tokensync.Keys{Store: store, Ring: s.ring, Alloc: alloc, Logger: logger}
		background.Go(func() { keys.Run(ctx) })
		revocations := &tokensync.Revocations{Store: store, List: s.revoked, Logger: logger}
		background.Go(func() { revocations.Run(ctx) })
		if i == 0 {
			background.Go(func() { s.report(ctx, store, logger) })
		}
		o := follow(store)
		if i < s.readers {
			background.Go(func() {
				done := o.services.Read(ctx)
				<-ctx.Done()
				done()
			})
		}
		return o
	}, closeAll
}

// node returns the ID and the name of the machine that a data directory stands for.
func (s *simulator) node() (id, name string) {
	id = uuid.NewSHA1(uuid.NameSpaceOID, []byte("simulated node "+string(s.layout.Dir))).String()
	return id, filepath.Base(string(s.layout.Dir))
}

// report writes a line into the file seen of the data directory for each change that the machine sees: which kind it
// has, the store's index or the ID of the token, and the time in nanoseconds.
func (s *simulator) report(ctx context.Context, store cluster.Store, logger *slog.Logger) {
	file, err := os.OpenFile(filepath.Join(string(s.layout.Dir), "seen"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		logger.Error("changes are not reported", "error", err)
		return
	}
	defer file.Close()
	var all sync.WaitGroup
	defer all.Wait()
	for kind, prefix := range map[string]string{
		"variable": "vars/default/" + probeName,
		"service":  "services/default/" + probeName + "/",
		"status":   "fleet/allocs/" + probeID,
	} {
		all.Go(func() {
			for index := uint64(0); ctx.Err() == nil; {
				changes, err := store.Watch(ctx, prefix, index)
				if err != nil {
					_ = wake.Sleep(ctx, time.Second) // the store is away
					continue
				}
				fmt.Fprintln(file, kind, changes.Index, time.Now().UnixNano())
				index = changes.Index
			}
		})
	}
	known := map[string]bool{}
	for {
		changed := s.revoked.Changed()
		for _, rule := range s.revoked.Rules() {
			if !known[rule.TokenID] {
				known[rule.TokenID] = true
				fmt.Fprintln(file, "revocation", rule.TokenID, time.Now().UnixNano())
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/fleet"
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

// openStores returns functions that open stores at their first call: those of the cluster, or one in memory.
func (s *simulator) openStores(ctx context.Context, count int, background *sync.WaitGroup) []func() opening {
	shared := s.layout.Shares()
	if !shared {
		count = 1
	}
	logger := base.NewLogger(false, s.environment)
	id, _ := s.node()
	all := make([]func() opening, count)
	for i := range all {
		all[i] = sync.OnceValue(func() opening {
			if !shared {
				store := memory.New()
				return s.follow(ctx, store, background)
			}
			store := s.layout.OpenCluster()
			keys := &tokensync.Keys{Store: store, Ring: s.ring, Lease: fleet.NodeLease(id), Logger: logger}
			background.Go(func() { keys.Run(ctx) })
			revocations := &tokensync.Revocations{Store: store, List: s.revoked, Logger: logger}
			background.Go(func() { revocations.Run(ctx) })
			if i == 0 {
				background.Go(func() { s.report(ctx, store, logger) })
			}
			return s.follow(ctx, store, background)
		})
	}
	return all
}

// follow follows the services of a store.
func (s *simulator) follow(ctx context.Context, store cluster.Store, background *sync.WaitGroup) opening {
	o := opening{store, registry.New(store).Feed(ctx, *s.job.Namespace)}
	background.Go(func() { o.services.Run(ctx) })
	return o
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

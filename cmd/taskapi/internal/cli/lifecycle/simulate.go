package lifecycle

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/stores"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/simulate"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/identity"
	"taskapi/identity/revocation"
)

// maxSimulated is more allocations than the descriptors of one process are enough for, with two sockets each.
const maxSimulated = 100_000

// checkSimulate refuses flags that have no meaning for allocations without processes.
func (o *runOptions) checkSimulate() error {
	switch {
	case o.Simulate < 0 || o.Simulate > maxSimulated:
		return base.Usagef("--simulate %d is no number of allocations from 1 to %d", o.Simulate, maxSimulated)
	case o.Simulate > 0 && (o.AllocID != "" || o.Force || o.Detach || o.IsolateUsers != "" || o.MetricsListen != ""):
		return base.Usagef(
			"--simulate goes with none of --alloc-id, --force, --detach, --%s and --%s: simulated allocations "+
				"are new, run in the foreground, and have no processes", agent.MetricsFlag, agent.IsolateFlag)
	}
	return nil
}

// simulated runs allocations of the job whose tasks have sockets and tokens, and no processes, until ctx ends. It
// leaves nothing behind. A closed terminal, or a reader of the events that has gone away, does not end it.
func (r *request) simulated(ctx context.Context) error {
	unheard := make(chan os.Signal, 1) // nobody receives: what does not fit is dropped
	signal.Notify(unheard, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGXFSZ)
	defer signal.Stop(unheard)
	if err := r.layout.MakeDir(); err != nil {
		return err
	}
	ring, err := r.layout.OpenKeyring(r.options.SealKey)
	if err != nil {
		return err
	}
	revoked, err := revocation.Open(revocation.Config{Dir: r.layout.Revocations(),
		MaxTTL: r.options.IdentityTTL + time.Minute})
	if err != nil {
		return err
	}
	defer revoked.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := stores.Open(stores.Memory, "")
	defer shared.Close()
	first := follow.NewQueuedPrinter(r.environment.Stdout, r.alloc, r.options.JSON)
	defer base.FlushAll(first.Queue)
	logger := base.NewLogger(r.options.Verbose, r.environment)
	var background, running sync.WaitGroup
	background.Go(func() { ring.Watch(ctx, logger) })
	background.Go(func() { revoked.Watch(ctx, logger) })
	services := registry.New(shared).Feed(ctx, r.alloc.Namespace)
	background.Go(func() { services.Run(ctx) })
	starting := make(chan struct{}, 2*runtime.GOMAXPROCS(0)) // has an element for each allocation that starts
	one := func() error {                                    // one more allocation of the job
		select {
		case starting <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		started := sync.OnceFunc(func() { <-starting })
		defer started()
		alloc := agent.NewAllocation(uuid.NewString(), r.alloc.Job, r.alloc.GetTaskGroup())
		cfg := start.AgentConfig(r.layout, alloc.ID, &memoryLock{life: uuid.NewString()}, logger, r.options.Settings,
			follow.NewPrinter(first.Queue, alloc, r.options.JSON), r.log, r.environment)
		cfg.Signals, cfg.TuneGC, cfg.Shared, cfg.Cluster, cfg.Services = nil, false, true, shared, services
		var last interfaces.AllocRunner // of the allocation and its replacements
		cfg.Factory = func(c interfaces.Config) (_ interfaces.AllocRunner, err error) {
			last, err = simulate.New(c)
			return last, err
		}
		cfg.Keyring = func() (*identity.Keyring, error) { return ring, nil }
		cfg.Revocations = func(time.Duration) (*revocation.List, error) { return revoked, nil }
		cfg.Events = simulatedEvents{cfg.Events, started}
		_, err := agent.New(cfg).Run(ctx, alloc)
		if last != nil {
			err = errors.Join(err, last.Destroy(context.WithoutCancel(ctx)))
		}
		return err
	}
	failed := make([]error, r.options.Simulate)
	for i := range failed {
		running.Go(func() {
			if failed[i] = one(); failed[i] != nil {
				cancel() // the others are of no use
			}
		})
	}
	running.Wait()
	cancel()
	background.Wait()
	return errors.Join(failed...)
}

// simulatedEvents prints when an allocation starts and ends, and nothing of its tasks. It calls started when one runs.
type simulatedEvents struct {
	agent.Events
	started func()
}

func (s simulatedEvents) TaskEvent(_ string, e *api.TaskEvent) {
	if e.Type == api.TaskStarted {
		s.started()
	}
}

func (simulatedEvents) Flush() {}

// memoryLock is the lock of an allocation that no other process knows and that is not saved.
type memoryLock struct{ life string }

func (*memoryLock) Saved() *interfaces.Saved { return nil }

func (l *memoryLock) Life() string { return l.life }

func (*memoryLock) Previous() *interfaces.Saved { return nil }

func (*memoryLock) State() interfaces.State { return nil }

func (*memoryLock) Unused() bool { return false } // its processes are simulated, and no keeper is looked for

func (*memoryLock) TryRecreate() error { return nil }

func (*memoryLock) FinishReplacement() error { return nil }

func (l *memoryLock) Recreate(*api.Allocation) error {
	l.life = uuid.NewString()
	return nil
}

// Command simulator runs many allocations of a job in one process. Their tasks have sockets and tokens, but no
// processes. If the data directory has a block cluster, the process is a machine of its own: its allocations use the
// cluster as processes of taskapi do. The benchmark measures it. It is a program of its own so that neither taskapi,
// nor the benchmark's servers and tasks, have its code.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/simulate"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/identity"
	"taskapi/identity/revocation"
)

// maxAllocations is more allocations than the descriptors of one process are enough for, with two sockets each.
const maxAllocations = 100_000

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stderr, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "simulator:", err)
		os.Exit(1)
	}
}

// run runs the allocations until ctx ends, or until each of them is stopped. It leaves nothing of them behind.
func run(ctx context.Context, log io.Writer, args []string) error {
	flags := flag.NewFlagSet("simulator", flag.ContinueOnError)
	flags.SetOutput(log)
	dataDir := flags.String("data-dir", "", "where keys and allocations live")
	allocations := flags.Int("allocations", 1, "how many allocations of the job run")
	readers := flags.Int("readers", 0, "how many of them read the changes of the cluster's services")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dataDir == "" || *allocations < 1 || *allocations > maxAllocations || flags.NArg() != 1 {
		return fmt.Errorf("want -data-dir DIR, -allocations of 1 to %d, and one job file", maxAllocations)
	}
	w := base.Environment{Stdout: io.Discard, Stderr: log}
	settings := agent.DefaultSettings()
	var reading start.JobFlags
	loaded, err := reading.Load(flags.Arg(0), settings, w)
	if err != nil {
		return err
	}
	layout, err := base.NewLayout(*dataDir, w)
	if err != nil {
		return err
	}
	s := simulator{layout: layout, settings: settings, environment: w, job: loaded.Job, group: loaded.Group}
	s.readers = *readers
	return s.run(ctx, *allocations)
}

type simulator struct {
	layout      base.Layout
	settings    agent.Settings
	environment base.Environment
	job         *api.Job
	group       *api.TaskGroup
	readers     int // of the first allocations

	ring     *identity.Keyring
	revoked  *revocation.List
	starting chan struct{} // has an element for each allocation that starts
}

func (s *simulator) run(ctx context.Context, allocations int) (err error) {
	defer agent.Prepare()()
	if err = s.layout.MakeDir(); err != nil {
		return err
	}
	if s.ring, err = s.layout.OpenKeyring(s.settings.SealKey); err != nil {
		return err
	}
	s.revoked, err = revocation.Open(revocation.Config{Dir: s.layout.Revocations(),
		MaxTTL: s.settings.IdentityTTL + time.Minute})
	if err != nil {
		return err
	}
	defer s.revoked.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.starting = make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	logger := base.NewLogger(false, s.environment)
	var background, running sync.WaitGroup
	background.Go(func() { s.ring.Watch(ctx, logger) })
	background.Go(func() { s.revoked.Watch(ctx, logger) })
	open, closeAll := s.openings(ctx, &background)
	failed := make([]error, allocations)
	for i := range failed {
		running.Go(func() {
			if failed[i] = s.one(ctx, i, open); failed[i] != nil {
				cancel() // the others are of no use
			}
		})
	}
	running.Wait()
	cancel()
	background.Wait()
	return errors.Join(errors.Join(failed...), closeAll())
}

func (s *simulator) one(ctx context.Context, i int, open func(i int, alloc string) opening) error {
	select {
	case s.starting <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	started := sync.OnceFunc(func() { <-s.starting })
	defer started()
	alloc := agent.NewAllocation(uuid.NewString(), s.job, s.group)
	o := open(i, alloc.ID)
	if s.layout.Shares() {
		alloc.NodeID, alloc.NodeName = s.node()
	}
	cfg := start.AgentConfig(s.layout, alloc.ID, &memoryLock{life: uuid.NewString()},
		base.NewLogger(false, s.environment), s.settings, &follow.Printer{}, nil, s.environment)
	cfg.Signals, cfg.TuneGC, cfg.Shared, cfg.Cluster, cfg.Services = nil, false, true, o.store, o.services
	var last interfaces.AllocRunner // of the allocation and its replacements
	cfg.Factory = func(c interfaces.Config) (_ interfaces.AllocRunner, err error) {
		last, err = simulate.New(c)
		return last, err
	}
	cfg.Keyring = func() (*identity.Keyring, error) { return s.ring, nil }
	cfg.Revocations = func(time.Duration) (*revocation.List, error) { return s.revoked, nil }
	cfg.Events = events(started)
	_, err := agent.New(cfg).Run(ctx, alloc)
	if last != nil {
		err = errors.Join(err, last.Destroy(context.WithoutCancel(ctx)))
	}
	return err
}

// events is called when a task of an allocation has started. Nothing is printed.
type events func()

func (started events) TaskEvent(_ string, e *api.TaskEvent) {
	if e.Type == api.TaskStarted {
		started()
	}
}

func (events) AllocEvent(string, string, ...string) {}
func (events) Announce(string, *api.Allocation)     {}
func (events) Ended(*api.Allocation, string)        {}
func (events) Fit(*api.Allocation)                  {}
func (events) Flush()                               {}

// memoryLock is the lock of an allocation that no other process knows and that is not saved.
type memoryLock struct{ life string }

func (*memoryLock) Saved() *interfaces.Saved { return nil }

func (l *memoryLock) Life() string { return l.life }

func (*memoryLock) Previous() *interfaces.Saved { return nil }

func (*memoryLock) State() interfaces.State { return nil }

func (*memoryLock) Unused() bool { return false } // its processes are simulated, and no keeper is looked for

func (*memoryLock) TryRecreate() error { return nil }

func (*memoryLock) FinishReplacement() error { return nil }

func (l *memoryLock) Recreate(*api.Allocation, bool) error {
	l.life = uuid.NewString()
	return nil
}

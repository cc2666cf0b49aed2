package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/devices"
	"taskapi/allocrunner/hoststats"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/templates"
	"taskapi/allocrunner/updates"
	"taskapi/allocrunner/volumes"
	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/cmd/taskapi/internal/agentlog"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/handlers/faults"
	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/identity/workload"
	"taskapi/internal/memory"
	"taskapi/socket"
)

// wiring connects one allocation's runner to everything around it.
type wiring struct {
	cfg         Config
	agent       *Agent        // takes requests for an end, and for another job
	life        string        // the ID of the allocation's present life
	log         *agentlog.Log // lets clients follow what logger logs
	logger      *slog.Logger
	keyring     *identity.Keyring
	revocations *revocation.List // nil for none
	issuers     []issuer
	tokens      *workload.Manager
	audit       *auth.AuditLog // nil for none
	policy      *auth.Policy
	limits      limitset.Set
	faults      *faults.File // nil for none
	authStats   func() auth.Stats
	shares      shares
	sockets     sockets
	runtimeDirs []string
	runner      interfaces.AllocRunner
	api         *handlers.API
	events      *events.Log
	updates     *updates.Buffer
	audience    *audience
	operator    *operatorHook // nil without an API
	registry    *registry.Registry
	provider    *registry.Provider
	variables   *variables.Service // nil for none, and without an API
	templates   *templates.Watch   // nil until a task with templates is made
	claims      *claims.Hook
	devices     *devices.Hook
	volumes     *volumes.Hook // nil for none
	lease       cluster.Lease // nil before hold, and if the store was unavailable then
	claim       *claim.Claim  // nil for an allocation that no other machine may run
	host        *hoststats.Host
	consul      *consul.Provider // nil without an agent
	reader      *consul.Reader   // for templates; nil without an agent

	ended    chan struct{} // closed when the runner has returned
	removing sync.Mutex    // guards the field below, and is held during a removal
	removed  bool          // the allocation's directory is removed
}

// newWiring makes the runner and the API of the locked allocation, as it was saved or as alloc is, and opens the files
// that they need. Nothing runs yet.
func newWiring(a *Agent, alloc *api.Allocation) (_ *wiring, err error) {
	cfg := a.cfg
	saved := cfg.Lock.Saved()
	s := &wiring{
		cfg:         cfg,
		agent:       a,
		life:        cfg.Lock.Life(),
		log:         agentlog.New(cfg.Logger.Handler()),
		runtimeDirs: socket.RuntimeDirs(os.Geteuid(), cfg.RuntimeDir),
		events:      events.New(),
		host:        hoststats.New(cfg.Dir.Alloc(cfg.ID)),
		ended:       make(chan struct{}),
		sockets:     sockets{open: map[*socket.Listener]struct{}{}},
	}
	s.logger = slog.New(s.log)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.openClaim(); err != nil {
		return nil, err
	}
	if err := s.openFiles(); err != nil {
		return nil, err
	}
	if saved != nil {
		alloc = saved.Alloc
	}
	s.shares = newShares(alloc.GetTaskGroup(), s.limits.AllConnections)
	sinks := []interfaces.Sink{s.events}
	if cfg.Manager.Send != nil {
		sinks = append(sinks, &notifier{send: cfg.Manager.Send})
	}
	s.updates = updates.New(updates.Config{Sinks: sinks, Logger: s.logger})
	s.audience = &audience{Updates: s.updates}
	config, err := s.runnerConfig(alloc)
	if err != nil {
		return nil, invalid(err)
	}
	config.Saved, config.Previous = saved, cfg.Lock.Previous()
	if s.runner, err = cfg.Factory(config); err != nil {
		return nil, invalid(err)
	}
	if saved != nil {
		s.events.Resume(saved.Alloc, s.runner.Alloc(), len(cfg.Changes) > 0)
	} else {
		s.events.Begin()
	}
	if v, ok := s.runner.(interfaces.Deployer); ok {
		s.events.FollowDeployments(v.Deployments)
	}
	if cfg.NoAPI {
		return s, nil
	}
	if err := s.openAPI(alloc); err != nil {
		return nil, err
	}
	return s, nil
}

// runnerConfig returns the configuration of the allocation's runner. It makes the providers of its services. Errors:
// wrong settings.
func (s *wiring) runnerConfig(alloc *api.Allocation) (interfaces.Config, error) {
	isolate, err := s.cfg.Settings.idRange()
	if err != nil {
		return interfaces.Config{}, err
	}
	if s.consul, err = s.newConsul(alloc); err != nil {
		return interfaces.Config{}, err
	}
	s.registry = registry.New(s.cfg.Cluster)
	s.provider = s.registry.Provider(alloc, s.logger)
	config := interfaces.Config{
		Alloc:        alloc,
		Dir:          s.cfg.Dir.Alloc(s.cfg.ID),
		HostIP:       s.cfg.Settings.HostIP,
		IsolateUsers: isolate,
		Unlimited:    s.cfg.Settings.Unlimited,
		Datacenter:   datacenter,
		Version:      s.cfg.Version,
		Logger:       s.logger,
		State:        s.cfg.Lock.State(),
		Life:         s.life,
		Updates:      s.audience,
		OnEvent:      s.cfg.Events.TaskEvent,
		Unused:       s.cfg.Lock.Unused(),
		Tied:         s.cfg.Tied,
		NodeMeta:     s.nodeMeta(),
		Foreground:   s.cfg.Foreground,

		ServiceProviders: []interfaces.ServiceProvider{s.provider},
		Leases:           s.leases,
	}
	if s.claim != nil {
		config.Tenure = s.claim
	}
	if s.consul != nil {
		config.ServiceProviders = append(config.ServiceProviders, s.consul)
	}
	if s.cfg.NoAPI {
		s.hold()
		config.Hooks, config.TaskHooks = s.claimHooks(), s.ownHooks
	} else {
		s.tokens = s.newTokens(alloc)
		config.Hooks, config.TaskHooks = s.runnerHooks(), s.taskHooks
	}
	if len(alloc.GetTaskGroup().Volumes) > 0 {
		s.volumes = volumes.New(volumes.Config{
			Machine: s.cfg.Settings.HostVolumes, DataDir: string(s.cfg.Dir),
			Holder: s.claims.Holder, Describe: describeHolder(s.cfg.Dir),
			Mounts: s.cfg.Settings.mounts, Logger: s.logger,
		})
		config.Hooks = append(config.Hooks, s.volumes)
	}
	return config, nil
}

// openFiles opens the files that the API needs.
func (s *wiring) openFiles() (err error) {
	if s.cfg.NoAPI {
		return nil
	}
	if s.keyring, err = s.cfg.Keyring(); err != nil {
		return err
	}
	if s.cfg.Revocations != nil {
		if s.revocations, err = s.cfg.Revocations(s.cfg.Settings.LongestTTL()); err != nil {
			return err
		}
	}
	if s.issuers, err = openIssuers(s.cfg.Settings.JWKS, s.logger); err != nil {
		return err
	}
	if s.policy, err = s.cfg.Settings.OpenPolicy(); err != nil {
		return err
	}
	if s.limits, err = limitsOf(s.cfg.Settings.Limits, s.policy); err != nil || s.cfg.Faults == "" {
		return err
	}
	if s.faults, err = faults.OpenFile(s.cfg.Faults, s.logger); err != nil {
		return invalid(fmt.Errorf("--faults %s: %w", s.cfg.Faults, UnwrapPath(err)))
	}
	return nil
}

// tokens says what an allocation's tokens claim.
func (s Settings) tokens(alloc *api.Allocation, life string) workload.Config {
	return workload.Config{
		Region: *alloc.Job.Region, Namespace: alloc.Namespace, JobID: interfaces.IdentityJobID(alloc),
		TaskGroup: alloc.TaskGroup, AllocationID: alloc.ID, Life: life,
		Issuer: s.Issuer, Audiences: s.Audience(), TTL: s.IdentityTTL, ExtraClaims: s.ExtraClaims,
		Job:  func() *api.Job { return alloc.Job },
		Node: api.Node{ID: alloc.NodeID, Datacenter: datacenter, NodePool: "default"},
	}
}

// newTokens returns the manager of the allocation's tokens.
func (s *wiring) newTokens(alloc *api.Allocation) *workload.Manager {
	config := s.cfg.Settings.tokens(alloc, s.life)
	config.Keyring, config.Logger = s.keyring, s.logger
	config.Job = func() *api.Job { return s.runner.Alloc().Job }
	if s.revocations != nil {
		config.Revocations = s.revocations
	}
	return workload.New(config)
}

// ending reports whether the allocation is ending or has ended.
func (s *wiring) ending() bool {
	return s.runner.Terminal() || s.runner.Alloc().DesiredStatus == api.AllocDesiredStatusStop
}

// run runs the allocation to its end and calls conclude with the runner's error. It returns conclude's error after
// clients have read the end.
func (s *wiring) run(ctx context.Context, conclude func(error) error) error {
	defer func() {
		if err := s.close(); err != nil {
			s.logger.Warn("the end of the audit log may be lost, or registrations of the allocation may stay", "error", err)
		}
	}()
	var background sync.WaitGroup
	defer background.Wait()
	if !s.cfg.Shared {
		memory.Bound(len(s.runner.Alloc().GetTaskGroup().Tasks), s.cfg.TuneGC)
	}
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	if !s.cfg.Shared {
		background.Go(func() { memory.GiveBack(watching) })
	}
	background.Go(func() { s.updates.Run(watching) })
	if s.claim != nil {
		background.Go(func() { s.claim.Run(watching, s.logger) })
		background.Go(func() { s.endLost(watching) })
	}
	background.Go(func() { s.provider.Run(watching) })
	if s.consul != nil {
		background.Go(func() { s.consul.Run(watching) })
	}
	if s.cfg.Clustered {
		for _, run := range s.shared() {
			background.Go(func() { run(watching) })
		}
	}
	if !s.cfg.NoAPI && !s.cfg.Shared {
		background.Go(func() { s.keyring.Watch(watching, s.logger) })
	}
	if !s.cfg.NoAPI {
		background.Go(func() { s.tokens.Run(watching) })
		background.Go(func() {
			if err := watchClock(watching, s.tokens.ClockSet); err != nil {
				s.logger.Warn("tokens are renewed up to half a minute late after the clock is set", "error", err)
			}
		})
		services := s.cfg.Services
		if services == nil {
			services = s.registry.Feed(watching, s.runner.Alloc().Namespace)
			background.Go(func() { services.Run(watching) })
		}
		s.events.FollowServices(services)
	}
	if s.revocations != nil && !s.cfg.Shared {
		background.Go(func() { s.revocations.Watch(watching, s.logger) })
	}
	for _, i := range s.issuers {
		background.Go(func() { i.follow(watching, s.logger) })
	}
	err := conclude(s.runner.Run(ctx))
	s.releaseClaim()
	close(s.ended)
	if s.operator != nil {
		replaced := s.runner.Terminal() && s.agent.present().replacement != nil
		if s.runner.Terminal() {
			s.audience.linger(ctx, replaced, s.operator.connections, s.agent.left)
		}
		if replaced {
			s.agent.socket = s.operator.handOver()
		}
		s.operator.close()
	}
	return err
}

// flushTimeout bounds the delivery of the last updates: a disk or a client that hangs must not keep taskapi from
// exiting.
const flushTimeout = 2 * time.Second

// flush delivers the latest version of the allocation to those who follow it.
func (s *wiring) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := s.updates.Flush(ctx); err != nil {
		s.logger.Warn("the last updates were not delivered", "error", err)
	}
}

// close closes what newWiring has opened. The lock stays its owner's.
func (s *wiring) close() error {
	var err error
	if s.lease != nil {
		err = s.letGo(s.lease)
	}
	if s.reader != nil {
		s.reader.Close()
	}
	if s.faults != nil {
		s.faults.Close()
	}
	if s.revocations != nil && !s.cfg.Shared {
		err = errors.Join(err, s.revocations.Close())
	}
	if s.audit != nil {
		err = errors.Join(err, s.audit.Close())
	}
	return err
}

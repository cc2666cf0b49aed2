package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/devices"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/cmd/taskapi/internal/tokensync"
	"taskapi/identity"
	"taskapi/internal/privatefile"
	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// leaseTimeout bounds how long the start of an allocation waits for the shared store.
const leaseTimeout = 2 * time.Second

// hold takes the lease of the allocation in the shared store. If the store is unavailable, the allocation starts
// without the lease, and holdLater takes the lease when the store is back.
func (s *wiring) hold() {
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	var err error
	if s.lease, err = s.cfg.Cluster.Hold(ctx, s.cfg.ID); err != nil {
		s.logger.Warn("the store that this machine's allocations share is unavailable: services and variables follow later",
			"error", err)
	}
}

// holdLater holds the lease that hold could not take. Without a holder for as long as the allocation lives, its
// services would not come back after the lease has ended, such as when this machine was cut off.
func (s *wiring) holdLater(ctx context.Context) {
	for {
		lease, err := s.cfg.Cluster.Hold(ctx, s.cfg.ID)
		if err == nil {
			<-ctx.Done()
			_ = s.letGo(lease) // it ends with the process at the latest
			return
		}
		if wake.Sleep(ctx, leaseTimeout/2+rand.N(leaseTimeout)) != nil {
			return
		}
	}
}

// letGo ends this process's hold of a lease. If the tasks run on, the lease is left to the next process.
func (s *wiring) letGo(lease cluster.Lease) error {
	if l, ok := lease.(cluster.Leaver); ok && s.runner != nil && !s.runner.Terminal() {
		l.Leave()
	}
	return lease.Close()
}

// leases returns the lease that hold has taken, and the claims.
func (s *wiring) leases() []interfaces.Lease {
	if s.lease == nil {
		return []interfaces.Lease{s.claims}
	}
	return []interfaces.Lease{s.lease, s.claims}
}

// ClaimsOf returns the claims of a data directory's allocations.
func ClaimsOf(dir datadir.Dir) claims.Table {
	return claims.Table{Dir: dir.Claims(), Left: func(id string) bool { return allocrunner.ProcessesLeft(dir.Alloc(id)) }}
}

// claimHooks returns the hooks that take things for the allocation alone, and that which ends its claims.
func (s *wiring) claimHooks() []interfaces.RunnerHook {
	s.claims = claims.NewHook(ClaimsOf(s.cfg.Dir), s.cfg.ID)
	s.devices = devices.New(devices.Config{
		Devices: s.cfg.Settings.Devices, Claims: s.claims.Holder, Describe: describeHolder(s.cfg.Dir),
		Drivers: s.cfg.Settings.TaskDrivers(), Logger: s.logger,
	})
	return []interfaces.RunnerHook{s.claims, s.devices}
}

// describeHolder returns a function that names an allocation of a data directory.
func describeHolder(dir datadir.Dir) func(id string) string {
	return func(id string) string {
		if saved, err := dir.Peek(id); err == nil && saved.Alloc != nil {
			return saved.Alloc.Name + ", " + id
		}
		return id
	}
}

// deviceHooks returns the hook of a task's devices; none without devices.
func (s *wiring) deviceHooks(task *api.Task) []interfaces.TaskHook {
	if hook := s.devices.TaskHook(task); hook != nil {
		return []interfaces.TaskHook{hook}
	}
	return nil
}

// CheckDevices returns the devices and cores that an allocation's tasks ask for and this machine lacks now. It reserves
// none. An allocation without an ID is only asked about: then what others have is only a warning.
func (s Settings) CheckDevices(alloc *api.Allocation, dir datadir.Dir) (findings []review.Finding) {
	group := alloc.GetTaskGroup()
	if !devices.Needs(group) {
		return nil
	}
	problems := devices.Problems(alloc.ID, group, s.Devices, ClaimsOf(dir), describeHolder(dir))
	for _, t := range group.Tasks {
		if err := problems[t.Name]; err != nil {
			severity := review.Refused
			if errors.Is(err, devices.ErrTaken) && alloc.ID == "" { // perhaps by this very job
				severity = review.Warning
			}
			findings = append(findings, review.Finding{Severity: severity, Feature: "resources",
				Where: fmt.Sprintf("group %q", *group.Name), Message: err.Error()})
		}
	}
	return findings
}

// openClaim finds the claim on the allocation's name, if there is one. It is kept in a file, so that another taskapi
// goes on with it. From here on, this allocation writes nothing to the shared store once another machine has the claim.
func (s *wiring) openClaim() error {
	path := s.cfg.Dir.Claim(s.cfg.ID)
	if given := s.agent.cfg.Claim; given != nil {
		s.claim, s.agent.cfg.Claim = given, nil
		if err := s.keepClaim(given.Saved()); err != nil {
			return err
		}
	} else {
		text, _, err := privatefile.Read(path, maxClaim)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		var saved claim.Saved
		if err == nil {
			err = json.Unmarshal(text, &saved)
		}
		if err != nil {
			return fmt.Errorf("the claim on the allocation's name, which other machines may have: %s: %w", path, err)
		}
		if place := s.place(); place == "" || place != saved.Place {
			s.claim = claim.Again(s.cfg.Cluster, saved, s.keepClaim)
		} else {
			s.claim = claim.Resume(s.cfg.Cluster, saved)
		}
	}
	s.cfg.Cluster = s.claim.Fenced()
	return nil
}

func (s *wiring) keepClaim(saved claim.Saved) error {
	saved.Place = s.place()
	text, err := json.Marshal(saved)
	if err == nil {
		err = privatefile.Write(s.cfg.Dir.Claim(s.cfg.ID), text)
	}
	if err != nil {
		return fmt.Errorf("keep the claim on the allocation's name: %w", err)
	}
	return nil
}

// place returns a name of the allocation's directory that no copy of the directory has, on any machine; empty if the
// place is unknown.
func (s *wiring) place() string {
	var stat syscall.Stat_t
	boot, err := proc.BootID()
	if err != nil || syscall.Stat(s.cfg.Dir.Alloc(s.cfg.ID), &stat) != nil {
		return ""
	}
	return fmt.Sprintf("%s %x %d", boot, stat.Dev, stat.Ino)
}

// maxClaim is more than a claim's file has.
const maxClaim = 64 << 10

// endLost kills the tasks, without any delay, as soon as another machine has taken the claim.
func (s *wiring) endLost(ctx context.Context) {
	select {
	case <-s.claim.Lost():
		s.cfg.Events.AllocEvent("Lost", claim.ErrLost.Error()+": killing its tasks")
		s.agent.kill()
	case <-ctx.Done():
	}
}

// lost reports whether another machine has taken the claim.
func (s *wiring) lost() bool {
	if s.claim == nil {
		return false
	}
	select {
	case <-s.claim.Lost():
		return true
	default:
		return false
	}
}

// releaseClaim lets another machine run the allocation, which has ended here. One that is left running, or is to begin
// again in this process, keeps its claim.
func (s *wiring) releaseClaim() {
	if s.claim == nil || !s.runner.Terminal() || s.agent.present().replacement != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	alloc := s.runner.Alloc()
	complete := alloc.ClientStatus == api.AllocClientStatusComplete && alloc.DesiredStatus == api.AllocDesiredStatusRun
	err := s.claim.Release(ctx, complete)
	if err == nil && s.endSaved() {
		err = os.Remove(s.cfg.Dir.Claim(s.cfg.ID))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.logger.Warn("another machine that stands by takes the allocation over later", "error", err)
	}
}

// endSaved reports whether the allocation's end is saved. One that ended on a full disk is resumed as it ran before,
// and without its claim it would run beside that of another machine.
func (s *wiring) endSaved() bool {
	saved, err := s.cfg.Dir.Peek(s.cfg.ID)
	return err == nil && saved != nil && saved.Terminal
}

// shared returns what keeps other machines and this one informed of each other. Unlike all else of the allocation, it
// is not fenced: it is about this machine.
func (s *wiring) shared() []func(context.Context) {
	store := s.agent.cfg.Cluster
	run := []func(context.Context){s.publisher(store).Run}
	if s.lease == nil {
		run = append(run, s.holdLater)
	}
	if s.cfg.NoAPI || s.cfg.Shared {
		return run
	}
	keys := &tokensync.Keys{Store: store, Ring: s.keyring, Alloc: s.cfg.ID, Logger: s.logger}
	run = append(run, keys.Run)
	if s.revocations != nil {
		run = append(run, (&tokensync.Revocations{Store: store, List: s.revocations, Logger: s.logger}).Run)
	}
	return run
}

// OpenVariables returns the variables of a store, sealed by the ring's seal key, or by that of the machines that share
// the store.
func OpenVariables(store cluster.Store, ring *identity.Keyring) (*variables.Service, error) {
	seal := func(purpose string) (cluster.Sealer, error) { return ring.Sealer(purpose) }
	if shared, ok := cluster.As[cluster.Sharer](store); ok {
		seal = shared.Sealer
	}
	sealer, err := seal("variables")
	if err != nil {
		return nil, err
	}
	return variables.New(variables.Config{Store: store, Sealer: sealer}), nil
}

package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/interfaces"
)

// Config configures the volumes of an allocation. All fields are required.
type Config struct {
	Machine  []Volume
	DataDir  string
	Holder   func() (*claims.Holder, error) // of the allocation's claims
	Describe func(holder string) string     // names another allocation
	Mounts   func(driver string) bool       // reports whether a driver mounts
	Logger   *slog.Logger
}

// Hook finds the volumes of an allocation, and claims the volumes that its tasks write to.
type Hook struct{ cfg Config }

var (
	_ interfaces.RunnerPrerunHook = (*Hook)(nil)
	_ interfaces.RunnerEndingHook = (*Hook)(nil)
)

// New returns the hook of an allocation with volumes.
func New(cfg Config) *Hook { return &Hook{cfg} }

// Name returns the name of the hook.
func (*Hook) Name() string { return "volumes" }

// Prerun adds the volumes to the resources. A resumed allocation goes on without the volumes that it can't have any
// more, and no task that mounts such a volume starts again.
func (h *Hook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	err := h.prepare(req)
	if err != nil && req.Restored {
		h.cfg.Logger.Warn("the allocation goes on, and tasks that mount the volume can't start again", "error", err)
		return nil
	}
	return err
}

// Ending adds the volumes to the resources of poststop tasks.
func (h *Hook) Ending(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	return h.prepare(req)
}

// prepare claims the volumes and adds them to the resources.
func (h *Hook) prepare(req *interfaces.RunnerPrerunRequest) error {
	requests := req.Alloc.GetTaskGroup().Volumes
	found := map[string]interfaces.Volume{}
	var wanted []claims.Claim
	names := map[string]string{} // by path
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		request := requests[name]
		v, err := Find(h.cfg.Machine, request, req.Alloc.Name)
		var path string
		if err == nil {
			path, err = v.check(h.cfg.DataDir)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", name, err))
			continue
		}
		found[name] = interfaces.Volume{Name: v.Name, HostPath: v.Path, ReadOnly: v.ReadOnly || request.ReadOnly}
		if !request.ReadOnly {
			names[path] = v.Name
			wanted = append(wanted, claims.Claim{Kind: kind, Name: path, Shared: request.AccessMode != SingleWriter})
		}
	}
	if len(errs) == 0 || req.Restored {
		if err := h.claim(wanted, names, req.Restored); err != nil {
			errs = append(errs, err)
			maps.DeleteFunc(found, func(name string, v interfaces.Volume) bool { return !requests[name].ReadOnly })
		}
	}
	req.Resources.Volumes = found
	return errors.Join(errs...)
}

// kind is the kind of the claims. A claim's name is a path, since the settings of two allocations can name a volume
// differently. Writers share a claim, unless one of them asks to be the only writer.
const kind = "volume"

// claim replaces the allocation's claims of volumes. A resumed allocation keeps the claims that it has, because its
// tasks may run.
func (h *Hook) claim(wanted []claims.Claim, names map[string]string, resumed bool) error {
	if len(wanted) == 0 && !resumed {
		return nil
	}
	holder, err := h.cfg.Holder()
	if err == nil {
		err = holder.Change(func(own, _ []claims.Claim) ([]claims.Claim, error) {
			kept := slices.DeleteFunc(slices.Clone(own), func(c claims.Claim) bool {
				return c.Kind == kind && (!resumed || slices.ContainsFunc(wanted, func(w claims.Claim) bool {
					return w.Name == c.Name
				}))
			})
			return append(kept, wanted...), nil
		})
	}
	if held, ok := errors.AsType[*claims.HeldError](err); ok {
		why := "the volume block asks for " + SingleWriter
		if held.Claim.Shared {
			why = "that is the only writer (" + SingleWriter + ")"
		}
		return fmt.Errorf("allocation %s has the host volume %q until it ends, and %s", h.cfg.Describe(held.Holders[0]),
			names[held.Claim.Name], why)
	}
	return err
}

// Task returns the hook of a task that mounts volumes.
func (h *Hook) Task(task *api.Task) interfaces.TaskHook {
	return &taskHook{volumes: h, logger: h.cfg.Logger.With("task", task.Name)}
}

package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/allocfs"
	"taskapi/internal/ptr"
)

// taskHook mounts volumes for one task, or makes links to them.
type taskHook struct {
	volumes *Hook
	logger  *slog.Logger
}

var _ interfaces.TaskPrestartHook = (*taskHook)(nil)

func (*taskHook) Name() string { return "volumes" }

// Prestart prepares the mounts of the task before each start. A process that runs keeps its mounts.
func (h *taskHook) Prestart(
	_ context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	resp := &interfaces.TaskPrestartResponse{}
	for _, m := range req.Task.VolumeMounts {
		name := req.Env.ReplaceEnv(ptr.Deref(m.Volume))
		mount, err := h.find(req, name, m)
		switch {
		case err != nil:
		case h.volumes.cfg.Mounts(req.Task.Driver):
			mount.TaskPath = filepath.Join("/", req.Env.ReplaceEnv(ptr.Deref(m.Destination)))
			resp.Mounts = append(resp.Mounts, mount)
		case !req.Restored:
			err = link(req, mount, req.Env.ReplaceEnv(ptr.Deref(m.Destination)))
		}
		switch {
		case err != nil && req.Restored:
			h.logger.Warn("the task goes on, and can't start again", "volume", name, "error", err)
		case err != nil:
			return nil, fmt.Errorf("volume_mount %q: %w", name, err)
		}
	}
	return resp, nil
}

// find returns the mount of a volume that the task's user can use.
func (h *taskHook) find(
	req *interfaces.TaskPrestartRequest, name string, m *api.VolumeMount,
) (interfaces.Mount, error) {
	v, ok := req.Resources.Volumes[name]
	if !ok {
		request := req.Alloc.GetTaskGroup().Volumes[name]
		if request == nil {
			return interfaces.Mount{}, errors.New("the group has no volume block of this name")
		}
		if _, err := Find(h.volumes.cfg.Machine, request, req.Alloc.Name); err != nil {
			return interfaces.Mount{}, err
		}
		return interfaces.Mount{}, errors.New("the allocation was resumed without the volume: stop it, and run it again")
	}
	if err := (Volume{Name: v.Name, Path: v.HostPath}).Check(h.volumes.cfg.DataDir); err != nil {
		return interfaces.Mount{}, err
	}
	if err := allocfs.Access(v.HostPath, req.User, false); err != nil {
		return interfaces.Mount{}, fmt.Errorf("user %q can't use the host volume %q: %w", req.User.Name, v.Name, err)
	}
	mount := interfaces.Mount{
		HostPath: v.HostPath, ReadOnly: v.ReadOnly || ptr.Deref(m.ReadOnly),
		Propagation: req.Env.ReplaceEnv(ptr.Deref(m.PropagationMode)),
	}
	if !mount.ReadOnly && !req.Restored {
		if err := allocfs.Access(v.HostPath, req.User, true); err != nil { // there may be directories that it can write to
			req.Lifecycle.Event("Volume", fmt.Sprintf("user %q can only read the host volume %q: %v", req.User.Name, v.Name,
				err))
		}
	}
	return mount, nil
}

// taken are the names in a task's directory that are taskapi's own.
var taken = map[string]bool{"local": true, "private": true, "secrets": true, "secrets/api.sock": true, "tmp": true}

// DestinationWords say what a destination must be.
const DestinationWords = "it must be in the task's directory, to which it is relative, and none of taskapi's own " +
	"names there, such as local"

// Destination returns a path relative to a task's directory, for one as a job has it. The root of an absolute path is
// the task's directory, as in Nomad's drivers, unless the path is in that directory already. It returns false for a
// path that leads out, or to a name that is taken.
func Destination(dir interfaces.TaskDir, path string) (string, bool) {
	rel := path
	if filepath.IsAbs(path) {
		rel = "." + filepath.Clean(path)
		if inAlloc, err := filepath.Rel(dir.AllocDir, path); err == nil && filepath.IsLocal(inAlloc) {
			rel, _ = filepath.Rel(dir.Dir, path) // both are absolute
		}
	}
	rel = filepath.Clean(rel)
	return rel, path != "" && filepath.IsLocal(rel) && rel != "." && !taken[rel]
}

// link makes the link to the volume.
func link(req *interfaces.TaskPrestartRequest, mount interfaces.Mount, destination string) error {
	at, ok := Destination(req.Dir, destination)
	if !ok {
		return fmt.Errorf("destination %q: %s", destination, DestinationWords)
	}
	return allocdir.Link(req.Dir, at, mount.HostPath, req.User)
}

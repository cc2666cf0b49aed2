package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/filewatch"
)

// Config is what a Hook needs.
type Config struct {
	Devices  []Device // that Check has accepted
	Claims   func() (*claims.Holder, error)
	Describe func(id string) string // names another allocation, for people
	Drivers  *drivers.Registry
	Logger   *slog.Logger
}

// Hook reserves the devices and cores of an allocation's tasks before the first one starts, and watches the devices'
// files. The claims end with the hook of package claims.
type Hook struct {
	cfg Config

	mu    sync.Mutex // guards the fields below
	tasks map[string]*taskDevices
	stop  func() // ends the watch; nil for none
}

// taskDevices are the files of a task's devices, and where events go.
type taskDevices struct {
	files     map[string]string // the path of a device file, with the device's name
	missing   map[string]bool   // the files that an event has reported as missing
	lifecycle interfaces.TaskLifecycle
}

var (
	_ interfaces.RunnerPrerunHook  = (*Hook)(nil)
	_ interfaces.RunnerEndingHook  = (*Hook)(nil)
	_ interfaces.RunnerPostrunHook = (*Hook)(nil)
	_ interfaces.ShutdownHook      = (*Hook)(nil)
)

// New returns the hook of an allocation. It does no I/O.
func New(cfg Config) *Hook { return &Hook{cfg: cfg, tasks: map[string]*taskDevices{}} }

// Name returns the name of the hook.
func (h *Hook) Name() string { return "devices" }

// Ending is Prerun for an ending allocation with a poststop task that needs devices or cores. No other task starts any
// more.
func (h *Hook) Ending(ctx context.Context, req *interfaces.RunnerPrerunRequest) error {
	if !slices.ContainsFunc(req.Alloc.GetTaskGroup().Tasks, func(t *api.Task) bool {
		return needs(t) && t.Lifecycle != nil && t.Lifecycle.Hook == api.TaskLifecycleHookPoststop
	}) {
		return nil
	}
	return h.Prerun(ctx, req)
}

// Prerun reserves the devices and cores that the tasks ask for. A resumed allocation keeps its devices and cores,
// because its tasks may run. If no process of the allocation ran for a while, other allocations may have taken them,
// and the tasks get others.
func (h *Hook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	group := req.Alloc.GetTaskGroup()
	if !Needs(group) {
		return nil
	}
	holder, err := h.cfg.Claims()
	if err != nil {
		return err
	}
	var got *reservation
	err = holder.Change(func(own, others []claims.Claim) ([]claims.Claim, error) {
		got = newReservation(h.cfg.Devices, others, h.cfg.Describe)
		if err := got.fill(group, req); err != nil {
			return nil, err
		}
		rest := slices.DeleteFunc(own, func(c claims.Claim) bool { return c.Kind == deviceKind || c.Kind == coreKind })
		return append(rest, got.claims...), nil
	})
	if err != nil {
		return err
	}
	req.Resources.Allocated = got.granted
	return nil
}

func (r *reservation) fill(group *api.TaskGroup, req *interfaces.RunnerPrerunRequest) error {
	kept := map[string]bool{}
	if had := req.Alloc.AllocatedResources; req.Restored && had != nil {
		for _, t := range group.Tasks {
			if before := had.Tasks[t.Name]; before != nil && needs(t) {
				kept[t.Name] = r.keep(t, before.Devices)
			}
		}
	}
	var errs []error
	for _, t := range group.Tasks {
		if needs(t) && !kept[t.Name] {
			errs = append(errs, r.reserve(t))
		}
	}
	return errors.Join(errs...)
}

// Postrun ends the watch.
func (h *Hook) Postrun(context.Context) error {
	h.Shutdown()
	return nil
}

// Shutdown ends the watch.
func (h *Hook) Shutdown() {
	h.mu.Lock()
	stop := h.stop
	h.stop = nil
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// TaskHook returns the hook of a task; nil if the task has no devices.
func (h *Hook) TaskHook(task *api.Task) interfaces.TaskHook {
	if task.Resources == nil || len(task.Resources.Devices) == 0 {
		return nil
	}
	return &taskHook{h, task.Name}
}

// taskHook gives a task its devices at each start.
type taskHook struct {
	hook *Hook
	task string
}

var (
	_ interfaces.TaskPrestartHook = (*taskHook)(nil)
	_ interfaces.TaskStopHook     = (*taskHook)(nil)
)

func (t *taskHook) Name() string { return "devices" }

// Prestart returns the variables of the devices, and their files and mounts if the task's driver can pass them on.
func (t *taskHook) Prestart(
	_ context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	resources := req.Alloc.AllocatedResources.Tasks[t.task]
	if resources == nil {
		return nil, fmt.Errorf("task %q has no devices", t.task)
	}
	env, nodes, mounts := given(t.hook.cfg.Devices, resources.Devices)
	files := map[string]string{}
	for _, g := range resources.Devices {
		if d := find(t.hook.cfg.Devices, g); d != nil {
			_, nodes, _ := given([]Device{*d}, []*api.AllocatedDeviceResource{g})
			for _, n := range nodes {
				files[n.HostPath] = d.Name
			}
		} else if !interfaces.IsCores(g) {
			req.Lifecycle.Event(eventKind, fmt.Sprintf("the machine's settings have no device %s any more: the task gets "+
				"nothing of it at its start", nameOf(g)))
		}
	}
	t.hook.watch(t.task, &taskDevices{files: files, missing: map[string]bool{}, lifecycle: req.Lifecycle})
	response := &interfaces.TaskPrestartResponse{Env: env}
	if d, err := t.hook.cfg.Drivers.Get(req.Task.Driver); err == nil {
		if d.Capabilities().Devices {
			response.Devices = nodes
		}
		if d.Capabilities().Mounts {
			response.Mounts = mounts
		}
	}
	return response, nil
}

// Stop ends the events of a task that is dead.
func (t *taskHook) Stop(context.Context) error {
	t.hook.mu.Lock()
	defer t.hook.mu.Unlock()
	delete(t.hook.tasks, t.task)
	return nil
}

// eventKind is the type of the events about a device.
const eventKind = "Device"

// watch begins to watch the directories of all devices' files, for events of the task, too.
func (h *Hook) watch(task string, devices *taskDevices) {
	if len(devices.files) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if had := h.tasks[task]; had != nil {
		devices.missing = had.missing
	}
	h.tasks[task] = devices
	h.lookLocked()
	if h.stop != nil {
		h.stop() // its goroutines do not wait for the lock
	}
	h.stop = h.followLocked()
}

// followLocked looks at the files when something changes in one of their directories.
func (h *Hook) followLocked() (stop func()) {
	dirs := map[string]bool{}
	for _, t := range h.tasks {
		for path := range t.files {
			dirs[filepath.Dir(path)] = true
		}
	}
	quit := make(chan struct{})
	for dir := range dirs {
		watch, err := watcher.DirAt(dir)
		if err != nil {
			h.cfg.Logger.Warn("nobody hears when a device's file goes away", "directory", dir, "error", err)
			continue
		}
		go func() {
			defer watch.Close()
			for {
				select {
				case <-watch.Changed():
					h.look()
				case <-quit:
					return
				}
			}
		}()
	}
	return sync.OnceFunc(func() { close(quit) })
}

// watcher watches the directories of all allocations of this process.
var watcher filewatch.Watcher

func (h *Hook) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lookLocked()
}

// lookLocked emits an event for each file that has gone or come back.
func (h *Hook) lookLocked() {
	for _, t := range h.tasks {
		for _, path := range slices.Sorted(maps.Keys(t.files)) {
			_, err := os.Stat(path)
			switch gone := err != nil; {
			case gone == t.missing[path]:
			case gone:
				t.lifecycle.Event(eventKind, fmt.Sprintf("%s is unhealthy: %s does not exist", t.files[path], path))
			default:
				t.lifecycle.Event(eventKind, fmt.Sprintf("%s is healthy: %s exists again", t.files[path], path))
			}
			t.missing[path] = err != nil
		}
	}
}

package interfaces

import (
	"context"
	"iter"
	"time"

	"github.com/hashicorp/nomad/api"
)

// RunnerHook is a hook of an allocation. The further interfaces that it implements say in which steps it is called.
//
//	Prerun ── tasks run ── PreKill ── tasks end ── Postrun ── (the allocation's directory goes) Destroy
//	            │   │ └── Shutdown: this process ends, the tasks run on
//	            │   └── PreTaskRestart: its tasks are restarted together
//	            └── Update: the job has another version
//
// Hooks are called in the order in which they were given, one at a time, but for Shutdown, which may come at any time.
// The runner's own hooks come after them at Prerun and Ending, so that services are registered last, and before them at
// every other step. Only Prerun certainly comes first: each other step may be called on a hook whose Prerun failed or
// was never called, and must then do nothing. How long each call took, and how often it failed, is counted.
type RunnerHook interface {
	// Name identifies the hook in logs, errors and metrics.
	Name() string
}

// Having yields those of the hooks that have a step, in their order.
func Having[Step, Hook any](hooks []Hook) iter.Seq[Step] {
	return func(yield func(Step) bool) {
		for _, hook := range hooks {
			if step, ok := any(hook).(Step); ok && !yield(step) {
				return
			}
		}
	}
}

// RunnerPrerunHook runs before the first task starts. An error fails the allocation: no further hook's Prerun is
// called, and nothing starts. ctx ends when the call returns, and before when the allocation is to stop, which is no
// failure, or to be left to another runner, which calls Prerun again.
type RunnerPrerunHook interface {
	RunnerHook
	Prerun(ctx context.Context, req *RunnerPrerunRequest) error
}

// RunnerPrerunRequest is the argument of a prerun hook.
type RunnerPrerunRequest struct {
	Alloc     *api.Allocation
	Env       Env            // of the allocation
	Resources *HookResources // to add to; nobody changes it after the hooks

	// Restored says that another runner ran the allocation before, so its tasks may run.
	Restored bool
}

// HookResources are resources that an allocation's hooks give to all of its tasks. If a task's driver can't pass them
// to the task, nothing starts.
type HookResources struct {
	Mounts           []Mount
	Devices          []Device
	NetworkNamespace string // the path of the one that the tasks join, as in /run/netns; empty for the machine's own

	// Allocated is what each task has for itself: devices and, as CoresDevice, cores. It becomes part of the
	// allocation's AllocatedResources. The runner keeps a task's processes on its cores.
	Allocated map[string][]*api.AllocatedDeviceResource

	Volumes map[string]Volume // by the names of the group's volume blocks, for the tasks' own hooks to mount
}

// Volume is a directory of the machine that an allocation may use.
type Volume struct {
	Name     string // the machine's
	HostPath string
	ReadOnly bool
}

// RunnerEndingHook runs in place of Prerun for an allocation that stops before its tasks have been received, usually
// one that is resumed to be stopped, also when the stop has interrupted Prerun. Then only poststop tasks start. Its
// error is logged.
type RunnerEndingHook interface {
	RunnerHook
	Ending(ctx context.Context, req *RunnerPrerunRequest) error
}

// RunnerPreKillHook runs when the allocation begins to end, before any task is killed or waits for a shutdown delay:
// for example, it deregisters services. The kills wait for it, so it must be quick.
type RunnerPreKillHook interface {
	RunnerHook
	PreKill()
}

// RunnerPostrunHook runs when every task is dead, also when a Prerun failed, unless the runner is detached. Its error
// becomes part of Run's.
type RunnerPostrunHook interface {
	RunnerHook
	Postrun(ctx context.Context) error
}

// RunnerDestroyHook runs when an ended allocation is removed, before its directory is removed. Its error becomes part
// of Destroy's, and the directory is removed all the same.
type RunnerDestroyHook interface {
	RunnerHook
	Destroy(ctx context.Context) error
}

// RunnerUpdateHook runs when the allocation gets another version of its job. Its error is logged: the update stands.
type RunnerUpdateHook interface {
	RunnerHook
	Update(ctx context.Context, req *RunnerUpdateRequest) error
}

// RunnerUpdateRequest is the argument of an update hook.
type RunnerUpdateRequest struct {
	Alloc *api.Allocation // with the new job
	Env   Env             // of the allocation, with the new job
}

// RunnerTaskRestartHook runs before tasks are restarted together: all tasks or the running ones on request, or the
// tasks that a check of the group's services restarts (check_restart). A restart of a single task calls only that
// task's hooks. Its error is logged.
type RunnerTaskRestartHook interface {
	RunnerHook
	PreTaskRestart(ctx context.Context) error
}

// ShutdownHook runs when this process ends and the tasks run on. A hook of the allocation or of a task may implement
// it. It must wait only for its own goroutines.
type ShutdownHook interface {
	Name() string
	Shutdown()
}

// Env is the environment at the moment of a hook's call. It never changes. A hook keeps only the values that it needs,
// to save memory.
type Env interface {
	// Get is the value of a variable, empty when it is not set.
	Get(name string) string
	// List is all variables as KEY=value, sorted.
	List() []string
	// ReplaceEnv replaces each ${name} in s by the variable or node fact of that name; unknown ones stay as written.
	ReplaceEnv(s string) string
}

// HookStat is how a hook's calls of one kind have gone.
type HookStat struct {
	Hook   string
	Step   string // "prerun", "task_prestart", ...
	Calls  uint64
	Errors uint64
	Took   time.Duration // all calls together
}

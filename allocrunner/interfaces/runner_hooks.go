package interfaces

import (
	"context"
	"iter"
	"time"

	"github.com/hashicorp/nomad/api"
)

// RunnerHook is a hook of an allocation. What it does is said by the further interfaces that it
// implements.
//
//	Prerun ── tasks run ── PreKill ── tasks end ── Postrun ── (the allocation's directory goes) Destroy
//	            │   │ └── Shutdown: this process ends, the tasks run on
//	            │   └── PreTaskRestart: its tasks are restarted together
//	            └── Update: the job has another version
//
// Hooks are called in the order in which they were given, one at a time, but for Shutdown, which may come at any time.
// The runner's own hooks come after them at Prerun, so that services are registered last, and else before them.
// Only Prerun is sure to come first: each of the others may be called on a hook whose Prerun failed, or was never
// called, and must then do nothing. How long each call took, and how often it failed, is counted.
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
// called, and nothing starts. ctx ends when the call returns, so nothing that is begun with it outlives it.
type RunnerPrerunHook interface {
	RunnerHook
	Prerun(ctx context.Context, req *RunnerPrerunRequest) error
}

// RunnerPrerunRequest is what a prerun hook may know.
type RunnerPrerunRequest struct {
	Alloc     *api.Allocation
	Env       Env            // of the allocation
	Resources *HookResources // to add to; nobody changes it after the hooks

	// Restored says that another runner had the allocation before: its tasks may run.
	Restored bool
}

// HookResources is what an allocation's hooks give to all of its tasks. Nothing starts when a task's driver can't give
// it to the task.
type HookResources struct {
	Mounts           []Mount
	Devices          []Device
	NetworkNamespace string // the path of the one that the tasks join, as in /run/netns; empty for the machine's own
}

// RunnerEndingHook runs in place of Prerun for an allocation that is to stop before its tasks have been received: most
// often one that is resumed to be stopped. Nothing starts then but poststop tasks. Its error is logged.
type RunnerEndingHook interface {
	RunnerHook
	Ending(ctx context.Context, req *RunnerPrerunRequest) error
}

// RunnerPreKillHook runs when the allocation begins to end, before any task is killed or waits for a shutdown delay:
// what others reach the tasks by goes first. The kills wait for it, so it takes no time.
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

// RunnerDestroyHook runs when an allocation that has ended is removed, before its directory is. Its error becomes part
// of Destroy's, and the directory goes all the same.
type RunnerDestroyHook interface {
	RunnerHook
	Destroy(ctx context.Context) error
}

// RunnerUpdateHook runs when the allocation gets another version of its job. Its error is logged: the update stands.
type RunnerUpdateHook interface {
	RunnerHook
	Update(ctx context.Context, req *RunnerUpdateRequest) error
}

// RunnerUpdateRequest is what an update hook may know.
type RunnerUpdateRequest struct {
	Alloc *api.Allocation // with the new job
	Env   Env             // of the allocation, with the new job
}

// RunnerTaskRestartHook runs before tasks are restarted together: all of them or those that run, on request, or those
// that a check of the group's services is about (check_restart). A restart of one task is its own hooks' alone. Its
// error is logged.
type RunnerTaskRestartHook interface {
	RunnerHook
	PreTaskRestart(ctx context.Context) error
}

// ShutdownHook runs when this process ends and the tasks run on. A hook of the allocation or of a task may have it. It
// must not wait for anything but its own goroutines.
type ShutdownHook interface {
	Name() string
	Shutdown()
}

// Env is an environment as it is when a hook is called, built for that call. It never changes. A hook keeps what it
// needs of it, not the whole: the memory of what hooks keep would grow with hooks and tasks.
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

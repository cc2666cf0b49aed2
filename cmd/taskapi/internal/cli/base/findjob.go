package base

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/output"
)

// FindEach is Find for a command that takes several allocations: the name of a job, or of an allocation, means all that
// Find would call ambiguous. If allocations are to be removed, it means those that have ended, if there are any.
func (f *TargetFlags) FindEach(ctx context.Context, args []string) ([]Target, error) {
	names, err := f.Names(args)
	if err != nil {
		return nil, err
	}
	t, err := f.Find(ctx, args)
	return eachOf(t, err, names, f.Sought)
}

// FindEach is Find, and its method FindEach, for the arguments alone.
func FindEach(ctx context.Context, w Environment, dataDir string, names []string, s Sought) ([]Target, error) {
	t, err := Find(ctx, w, dataDir, names, s)
	return eachOf(t, err, names, s)
}

func eachOf(t Target, err error, names []string, s Sought) (all []Target, _ error) {
	several, ok := errors.AsType[*ambiguousError](err)
	if !ok || !several.ofJob() {
		return []Target{t}, err
	}
	matches := several.matches
	ended := slices.DeleteFunc(slices.Clone(matches), func(m match) bool { return m.Running })
	if s.exact && len(ended) > 0 {
		matches = ended
	}
	for _, m := range matches {
		t := m.Target
		if len(names) > 1 {
			if t, err = new(Finder).withTask(m.known, names[1], s); err != nil {
				return nil, err
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// ofJob reports whether the name is that of a job or its allocations, which are in one namespace of one data directory,
// and nothing else has the name.
func (e *ambiguousError) ofJob() bool {
	first := e.matches[0]
	return !slices.ContainsFunc(e.matches, func(m match) bool {
		return !m.named(e.name) || m.Alloc.JobID != first.Alloc.JobID || m.Alloc.Namespace != first.Alloc.Namespace ||
			m.Layout.Dir != first.Layout.Dir
	})
}

// FindTasks is Find for a command that takes several tasks of an allocation, in the order in which the group starts
// them. A target without a task is for all tasks.
func (f *TargetFlags) FindTasks(ctx context.Context, args []string) ([]Target, error) {
	names, err := f.Names(args)
	if err != nil {
		return nil, err
	}
	if len(names) < 2 {
		t, err := f.Find(ctx, args)
		return []Target{t}, err
	}
	var all []Target
	for _, task := range names[1:] {
		t, err := Find(ctx, f.w, f.DataDir, []string{names[0], task}, f.Sought)
		switch {
		case err != nil:
			return nil, err
		case slices.Contains(TaskNames(t.Alloc), names[0]) && !t.means(names[0]):
			return nil, Usagef("%q is a task of allocation %s: give %[2]s before the names of tasks", names[0],
				output.ShortID(t.ID))
		case !slices.ContainsFunc(all, func(other Target) bool { return other.Task == task }):
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b Target) int { return a.StartRank() - b.StartRank() })
	return all, nil
}

// means reports whether a name is the allocation's own, its job's, or the beginning of its ID.
func (t Target) means(name string) bool {
	return t.named(name) || strings.HasPrefix(t.ID, strings.ToLower(name))
}

// StartRank says when the group starts the target's task: 0 for prestart, 1 for main, 2 for poststart and poststop.
func (t Target) StartRank() int {
	switch spec := t.spec(); {
	case spec.Lifecycle == nil:
		return 1
	case spec.Lifecycle.Hook == api.TaskLifecycleHookPrestart:
		return 0
	}
	return 2
}

// IsPoststop reports whether the target's task runs after the others have ended.
func (t Target) IsPoststop() bool {
	hook := t.spec().Lifecycle
	return hook != nil && hook.Hook == api.TaskLifecycleHookPoststop
}

// StopRank says when a stop of the group stops the target's task: 0 for the leader, 1 for others, 2 for sidecars.
func (t Target) StopRank() int {
	switch spec := t.spec(); {
	case spec.Leader:
		return 0
	case spec.Lifecycle != nil && spec.Lifecycle.Sidecar:
		return 2
	}
	return 1
}

// spec returns the target's task as the job has it; an empty one if it has none.
func (t Target) spec() *api.Task {
	if t.Alloc != nil {
		for _, task := range cmp.Or(t.Alloc.GetTaskGroup(), new(api.TaskGroup)).Tasks {
			if task.Name == t.Task {
				return task
			}
		}
	}
	return new(api.Task)
}

// MeansTasks reports whether arguments that may be several allocations, or an allocation and some of its tasks, are the
// latter. Errors: they may be both, or are neither.
func (f *TargetFlags) MeansTasks(ctx context.Context, args []string) (bool, error) {
	alloc, err := f.flag("alloc")
	if f.GivesTask() || err != nil || alloc != "" && len(args) > 0 && args[0] != alloc {
		return true, err
	}
	if len(args) < 2 {
		return false, nil
	}
	finder, err := Look(ctx, f.w, f.DataDir)
	if err != nil {
		return false, err
	}
	return finder.meansTasks(args[0], args[1:])
}

func (f *Finder) meansTasks(first string, others []string) (bool, error) {
	running := f.Running()
	var tasks []string // of the allocations that the first name means
	for _, k := range f.Known {
		if k.means(first) {
			tasks = append(tasks, TaskNames(k.Alloc)...)
		}
	}
	named := 0
	for _, name := range others {
		if !slices.Contains(tasks, name) {
			has := func(k known) bool { return k.named(name) || k.means(name) || slices.Contains(TaskNames(k.Alloc), name) }
			if len(tasks) > 0 && !slices.ContainsFunc(f.Known, has) {
				return false, fmt.Errorf("no allocation, job or task %q: the tasks of %q are %s", name, first,
					strings.Join(slices.Compact(slices.Sorted(slices.Values(tasks))), ", "))
			}
			continue
		}
		named++
		other := func(t Target) bool { return t.named(name) && !t.means(first) }
		if i := slices.IndexFunc(running, other); i >= 0 {
			return false, Usagef("%q is a task of %q and a name of allocation %s: give --alloc %[2]s %[1]s for the task, or "+
				"%[3]s for the allocation", name, first, output.ShortID(running[i].ID))
		}
	}
	if named > 0 && named < len(others) {
		return false, Usagef("some of %s are tasks of %q, and others are not: give allocations, or one and its tasks",
			strings.Join(others, ", "), first)
	}
	return named > 0, nil
}

// LatestOf returns the latest allocation of each name of a job, the latest first, if there are several of them, and the
// finder. It returns none if a single one runs, which is the one that is meant. If several run, it leaves out those
// that were stopped.
func (f *TargetFlags) LatestOf(ctx context.Context, args []string) ([]Target, *Finder, error) {
	names, err := f.Names(args)
	if err != nil || len(names) != 1 {
		return nil, nil, err
	}
	finder, err := Look(ctx, f.w, f.DataDir, names...)
	if err != nil {
		return nil, nil, err
	}
	var latest []match
	var all []Target
	running := 0
	for _, k := range slices.Backward(finder.Known) {
		if k.Alloc == nil || k.Alloc.JobID != names[0] {
			continue
		}
		if k.Running {
			running++
		}
		if k.Running || !slices.ContainsFunc(latest, func(m match) bool { return m.Alloc.Name == k.Alloc.Name }) {
			latest, all = append(latest, match{known: k}), append(all, k.Target)
		}
	}
	if running > 1 {
		all = slices.DeleteFunc(all, func(t Target) bool {
			return interfaces.Ended(t.Alloc) && t.Alloc.DesiredStatus == api.AllocDesiredStatusStop
		})
	}
	if len(latest) < 2 || running == 1 || !(&ambiguousError{names[0], latest}).ofJob() {
		return nil, nil, nil
	}
	return all, finder, nil
}

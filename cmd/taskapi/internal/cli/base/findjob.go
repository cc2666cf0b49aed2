package base

import (
	"context"
	"errors"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// FindEach is Find for a command that takes several allocations: the name of a job means all of the job's allocations
// that Find would call ambiguous, unless an allocation is to be removed.
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
	if !ok || s.exact || !several.ofJob() {
		return []Target{t}, err
	}
	for _, m := range several.matches {
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

// ofJob reports whether the name is that of a job, all of whose allocations are in one namespace of one data directory,
// and nothing else has the name.
func (e *ambiguousError) ofJob() bool {
	first := e.matches[0]
	return !slices.ContainsFunc(e.matches, func(m match) bool {
		return m.Alloc == nil || m.Alloc.JobID != e.name || m.Alloc.Namespace != first.Alloc.Namespace ||
			m.Layout.Dir != first.Layout.Dir
	})
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

package keeper

import (
	"context"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// previousExits holds the latest process of each task of earlier keepers, as the last of these recorded it. None of the
// processes runs, but a late client can still learn how they ended. It never changes. Nobody looks here for a task that
// has had a process of this keeper.
type previousExits map[string]drivers.ProcessStatus

// readPreviousExits reads the record of the previous keeper. A record that can't be read counts as missing.
func readPreviousExits(dir string, now time.Time) previousExits {
	last, _ := Last(dir)
	p := previousExits{}
	for _, l := range last.hints().latest {
		if l.Exit == nil {
			l.Exit = &interfaces.ExitResult{ExitCode: -1, At: now, Err: l.LostError().Error()}
		}
		p[l.Task] = l.ProcessStatus
	}
	return p
}

// list returns the latest process of each task, which may be an earlier keeper's.
func (s *server) list(ctx context.Context) ([]drivers.ProcessStatus, error) {
	list, err := s.local.List(ctx)
	if len(s.previous) == 0 {
		return list, err
	}
	known := map[string]bool{}
	for _, status := range list {
		known[status.Task] = true
	}
	for task, status := range s.previous {
		if !known[task] {
			list = append(list, status)
		}
	}
	slices.SortFunc(list, func(a, b drivers.ProcessStatus) int { return strings.Compare(a.Task, b.Task) })
	return list, err
}

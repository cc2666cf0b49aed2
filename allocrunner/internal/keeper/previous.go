package keeper

import (
	"context"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// previousExits holds the latest process of each task that the keepers before this one had, as the last of them
// recorded it. None of them runs: a late client still learns how they ended. It never changes. A task that has had a
// process of this keeper is not looked for here.
type previousExits map[string]drivers.ProcessStatus

// readPreviousExits reads the record of the keeper before. A record that can't be read says nothing, as one that is not
// there.
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

// list returns the latest process of each task, be it an earlier keeper's.
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

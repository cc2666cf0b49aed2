package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
)

// past is the latest process of each task that the keepers before this one had, as the last of them wrote it down. None of them runs:
// whoever comes late still hears how they ended. It never changes. A task that has had a process of this keeper is not looked for here.
type past map[string]driver.Status

// pastOf reads the record of the keeper before. A record that can't be read says nothing, as one that is not there.
func pastOf(dir string, now time.Time) past {
	last, _ := Last(dir)
	p := past{}
	for _, s := range last.Tasks {
		if s.Exit == nil {
			s.Exit = &interfaces.ExitResult{ExitCode: -1, At: now, Err: LostError(s).Error()}
		}
		p[s.Task] = s
	}
	return p
}

// LostError is a driver.ErrLost that says what became of a process when its keeper was killed, and all that could be found was ended. It
// claims no more than was looked for.
func LostError(s driver.Status) error {
	if s.Start == 0 { // an older keeper's, or not written down
		return fmt.Errorf("%w, and what was found of the task was ended", driver.ErrLost)
	}
	return fmt.Errorf("%w, and the task with it", driver.ErrLost)
}

// list is the latest process of each task, be it an earlier keeper's.
func (s *server) list(ctx context.Context) ([]driver.Status, error) {
	list, err := s.local.List(ctx)
	if len(s.past) == 0 {
		return list, err
	}
	known := map[string]bool{}
	for _, status := range list {
		known[status.Task] = true
	}
	for task, status := range s.past {
		if !known[task] {
			list = append(list, status)
		}
	}
	slices.SortFunc(list, func(a, b driver.Status) int { return strings.Compare(a.Task, b.Task) })
	return list, err
}

// wait is driver.Supervisor's Wait, also for the process of an earlier keeper.
func (s *server) wait(ctx context.Context, task string) (interfaces.ExitResult, error) {
	exit, err := s.local.Wait(ctx, task)
	if before, ok := s.past[task]; ok && errors.Is(err, driver.ErrNotRunning) {
		return *before.Exit, nil
	}
	return exit, err
}

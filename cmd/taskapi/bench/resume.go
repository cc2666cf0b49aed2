package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// resumeTasks are the numbers of tasks that an agent is killed with.
var resumeTasks = []int{1, 50}

// A resumeRow is how soon an agent that was killed is there again, beside one that starts the same job afresh.
type resumeRow struct {
	Tasks  int
	Resume spread // from exec to the operator's first 200, with the tasks of the one before
	Fresh  spread // from exec to the operator's first 200, with an allocation that begins
}

func measureResume(ctx context.Context, env *environment, o options) (rows []resumeRow, err error) {
	for _, tasks := range o.upTo(resumeTasks) {
		var resumed, fresh []time.Duration
		for range o.rounds {
			first, again, err := resume(ctx, env, tasks)
			if err != nil {
				return nil, fmt.Errorf("%d tasks: %w", tasks, err)
			}
			fresh, resumed = append(fresh, first), append(resumed, again...)
		}
		rows = append(rows, resumeRow{Tasks: tasks, Resume: spreadOf(resumed), Fresh: spreadOf(fresh)})
	}
	return rows, nil
}

// resume starts an allocation, and kills and starts its agent several times.
func resume(ctx context.Context, env *environment, tasks int) (first time.Duration, again []time.Duration, err error) {
	a, err := env.allocation(env.path(".data"), sleepers(tasks))
	if err != nil {
		return 0, nil, err
	}
	s, first, err := env.untilAnswer(ctx, a)
	defer func() {
		if s != nil {
			s.stopInto(&err)
		}
	}()
	if err != nil {
		return 0, nil, err
	}
	if err := s.allRun(ctx, tasks); err != nil {
		return 0, nil, err
	}
	keeper, err := s.keeper(env)
	if err != nil {
		return 0, nil, err
	}
	for range startsPerRound {
		if err := s.kill(); err != nil {
			return 0, nil, err
		}
		var took time.Duration
		if s, took, err = env.untilAnswer(ctx, a); err != nil {
			return 0, nil, err
		}
		if err := s.goesOn(ctx, env, keeper, tasks); err != nil {
			return 0, nil, err
		}
		again = append(again, took)
	}
	return first, again, nil
}

// untilAnswer starts taskapi and says how long it took until the operator got a 200. What it returns is to be stopped in any case.
func (env *environment) untilAnswer(ctx context.Context, a allocation) (*agent, time.Duration, error) {
	s, err := env.run(a)
	if err != nil {
		return nil, 0, err
	}
	err = s.until(ctx, "the operator's first 200", startTime, pollInterval, s.answersOperator)
	return s, time.Since(s.started), err
}

// kill ends the process at once, and only it.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return err
	}
	<-p.done
	return nil
}

// goesOn makes sure that the tasks are those of before: what is measured must not be a new beginning.
func (s *agent) goesOn(ctx context.Context, env *environment, keeper, tasks int) error {
	if err := s.allRun(ctx, tasks); err != nil {
		return err
	}
	now, err := s.keeper(env)
	if err != nil {
		return err
	}
	if now != keeper {
		return fmt.Errorf("the agent was killed, and the keeper is process %d now, not %d", now, keeper)
	}
	alloc, err := s.alloc()
	for name, task := range alloc.TaskStates {
		if task.Restarts > 0 {
			err = errors.Join(err, fmt.Errorf("task %q was restarted", name))
		}
	}
	return err
}

func printResume(w io.Writer, rows []resumeRow) {
	fmt.Fprintln(w, "from exec to the operator's first 200\tafter SIGKILL (spread)\ta new allocation (spread)")
	for _, row := range rows {
		fmt.Fprintf(w, "%d task(s)\t%v\t%v\n", row.Tasks, row.Resume, row.Fresh)
	}
	fmt.Fprintln(w)
}

package main

import (
	"context"
	"fmt"
	"time"
)

// resumes kills agents with few and with many tasks, and measures from exec to the operator's first 200.
func (env *environment) resumes(ctx context.Context, _ options) (all []sample, err error) {
	for _, tasks := range []int{1, 50} {
		fresh, again, err := resume(ctx, env, tasks)
		if err != nil {
			return nil, fmt.Errorf("%d tasks: %w", tasks, err)
		}
		all = append(all, timeSample(fmt.Sprintf("%d task(s), after SIGKILL", tasks), median(again)),
			timeSample(fmt.Sprintf("%d task(s), a new allocation", tasks), fresh))
	}
	return all, nil
}

// resume starts an allocation, and kills and starts its agent several times.
func resume(ctx context.Context, env *environment, tasks int) (first time.Duration, again []time.Duration, err error) {
	s, err := env.agent(env.path(".data"), sleepers(tasks, ""))
	if err != nil {
		return 0, nil, err
	}
	defer func() { s.stopInto(&err) }()
	if first, err = s.answersOperator(ctx); err != nil {
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
		if err := s.cmd.Process.Kill(); err != nil {
			return 0, nil, err
		}
		<-s.done
		if s.process, err = start(env.binary, s.cmd.Args[1:]...); err != nil {
			return 0, nil, err
		}
		took, err := s.answersOperator(ctx)
		if err != nil {
			return 0, nil, err
		}
		if err := s.goesOn(ctx, env, keeper, tasks); err != nil {
			return 0, nil, err
		}
		again = append(again, took)
	}
	return first, again, nil
}

// goesOn makes sure that the tasks are those of before: what is measured must not be a new start.
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
	alloc, err := s.allocation()
	if err != nil {
		return err
	}
	for name, task := range alloc.TaskStates {
		if task.Restarts > 0 {
			return fmt.Errorf("task %q was restarted", name)
		}
	}
	return nil
}

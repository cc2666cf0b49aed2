package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

// pollInterval is how often a start is looked at from outside; it bounds the error of the figure.
const pollInterval = 200 * time.Microsecond

// startsPerRound is how often each start is measured for every round that the other measurements last: a start takes
// milliseconds, not a second, and varies more.
const startsPerRound = 4

// startReport holds the times from exec to a first 200. The first start of taskapi, which also makes the key ring, is apart.
type startReport struct {
	Floor    spread // a bare server, as its client sees it
	Task     spread // taskapi, as its task sees it: the task's own exec is in it
	TaskMain spread // taskapi, until the task's main function runs
	Operator spread // taskapi, as the operator sees it
	Fresh    time.Duration
}

// A firstAnswer is what a task reports of its start, in nanoseconds of the wall clock.
type firstAnswer struct {
	Main  int64 // when its main function ran
	First int64 // when its first 200 had come
	Tries int
}

// firstRole is the task that asks at once, and writes a firstAnswer into the file that is its argument.
func firstRole(ctx context.Context, args []string) error {
	answer := firstAnswer{Main: time.Now().UnixNano()}
	if len(args) != 1 {
		return fmt.Errorf("the task takes a file, not %q", args)
	}
	socket := strings.TrimPrefix(os.Getenv("NOMAD_UNIX_ADDR"), "unix://")
	request := get(checksPath(os.Getenv("NOMAD_ALLOC_ID")), os.Getenv("NOMAD_TOKEN"))
	for {
		answer.Tries++
		r, err := exchange(socket, request)
		if err == nil && r.status == http.StatusOK {
			break
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pollInterval):
		}
	}
	answer.First = time.Now().UnixNano()
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	// The reader must never see half a file.
	if err := os.WriteFile(args[0]+".new", text, 0o644); err != nil {
		return err
	}
	if err := os.Rename(args[0]+".new", args[0]); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func measureStart(ctx context.Context, env *environment, o options) (*startReport, error) {
	var floors, tasks, mains, operators []time.Duration
	var fresh time.Duration
	data := env.path(".data")
	for i := range startsPerRound*o.rounds + 1 {
		f, err := floorStart(ctx, env)
		if err != nil {
			return nil, err
		}
		task, main, operator, err := agentStart(ctx, env, data)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			fresh = task
			continue
		}
		floors, tasks = append(floors, f), append(tasks, task)
		mains, operators = append(mains, main), append(operators, operator)
	}
	return &startReport{
		Floor: spreadOf(floors), Task: spreadOf(tasks), TaskMain: spreadOf(mains), Operator: spreadOf(operators), Fresh: fresh,
	}, nil
}

func floorStart(ctx context.Context, env *environment) (first time.Duration, err error) {
	f, err := env.floor(reply{contentType: "application/json", body: []byte("{}")})
	if err != nil {
		return 0, err
	}
	defer f.stopInto(&err)
	at, err := f.answers(ctx, get("/", "none"))
	return at.Sub(f.started), err
}

func agentStart(ctx context.Context, env *environment, data string) (task, main, operator time.Duration, err error) {
	file := env.path(".first")
	s, err := env.agent(data, nil, "role-first", file)
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.stopInto(&err)
	err = s.until(ctx, "the operator's first 200", startTime, pollInterval, s.answersOperator)
	if err != nil {
		return 0, 0, 0, err
	}
	operator = time.Since(s.started)
	var answer firstAnswer
	err = s.until(ctx, "the task's first 200", startTime, time.Millisecond, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(text, &answer) == nil
	})
	since := func(ns int64) time.Duration { return time.Unix(0, ns).Sub(s.started) }
	return since(answer.First), since(answer.Main), operator, err
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// pollInterval is how often a start is looked at from outside; it bounds the error of the figure.
const pollInterval = 200 * time.Microsecond

// startsPerRound is how often each start is measured in a round: a start takes milliseconds, and varies more than a
// second of requests.
const startsPerRound = 4

// A firstAnswer is what a task reports of its start, in nanoseconds of the wall clock.
type firstAnswer struct {
	Main  int64 // when its main function ran
	First int64 // when its first 200 had come
}

// firstRole is a task that sends a request at once, and writes a firstAnswer into the file that its argument names.
func firstRole(ctx context.Context, args []string) error {
	answer := firstAnswer{Main: time.Now().UnixNano()}
	if len(args) != 1 {
		return fmt.Errorf("the task takes a file, not %q", args)
	}
	socket := strings.TrimPrefix(os.Getenv("NOMAD_UNIX_ADDR"), "unix://")
	request := get(checksPath(os.Getenv("NOMAD_ALLOC_ID")), os.Getenv("NOMAD_TOKEN"))
	for {
		r, err := exchange(socket, request)
		if err == nil && r.status == http.StatusOK {
			break
		}
		if ended := wait(ctx, pollInterval); ended != nil {
			return errors.Join(ended, err)
		}
	}
	answer.First = time.Now().UnixNano()
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	if err := os.WriteFile(args[0], text, 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// measureStart starts both servers in turn. The first start of taskapi also makes the key ring; it is told apart.
func measureStart(ctx context.Context, env *environment, o options, table io.Writer) error {
	var floors, tasks, mains, operators []time.Duration
	data := env.path(".data")
	for range startsPerRound*o.rounds + 1 {
		f, err := floorStart(ctx, env)
		if err != nil {
			return err
		}
		task, main, operator, err := agentStart(ctx, env, data)
		if err != nil {
			return err
		}
		floors, tasks = append(floors, f), append(tasks, task)
		mains, operators = append(mains, main), append(operators, operator)
	}
	fmt.Fprintln(table, "from exec to\tmedian (spread)")
	fmt.Fprintf(table, "a bare server's first 200\t%s\n", spread(floors[1:]))
	fmt.Fprintf(table, "the operator's first 200\t%s\n", spread(operators[1:]))
	fmt.Fprintf(table, "the task's main function\t%s\n", spread(mains[1:]))
	fmt.Fprintf(table, "the task's first 200\t%s\n", spread(tasks[1:]))
	fmt.Fprintf(table, "the same, with a new key ring\t%s\n", millis(tasks[0]))
	return nil
}

func floorStart(ctx context.Context, env *environment) (first time.Duration, err error) {
	empty := reply{contentType: "application/json", body: []byte("{}")}
	f, err := env.floor(ctx, empty, get("/", "none"))
	if f != nil {
		first = time.Since(f.started)
		f.stopInto(&err)
	}
	return first, err
}

func agentStart(ctx context.Context, env *environment, data string) (task, main, operator time.Duration, err error) {
	file := env.path(".first")
	s, err := env.agent(data, server(env.self, "role-first", file))
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.stopInto(&err)
	if operator, err = s.answersOperator(ctx); err != nil {
		return 0, 0, 0, err
	}
	var answer firstAnswer
	err = s.until(ctx, "the task's first 200", startTime, time.Millisecond, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(text, &answer) == nil // half a file is no JSON
	})
	since := func(ns int64) time.Duration { return time.Unix(0, ns).Sub(s.started) }
	return since(answer.First), since(answer.Main), operator, err
}

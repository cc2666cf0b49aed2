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

// A beginning is what a start of taskapi took, from exec on.
type beginning struct {
	operator, main, task time.Duration // to the operator's first 200, the task's main function, its first 200
	operatorCPU, taskCPU time.Duration // of taskapi, its keeper and the task, until these answers were seen
}

// measureStart starts both servers in turn. The first start of taskapi also makes the key ring; it is told apart.
func measureStart(ctx context.Context, env *environment, o options, table io.Writer) error {
	var floors []time.Duration
	var all []beginning
	data := env.path(".data")
	for range startsPerRound*o.rounds + 1 {
		f, err := floorStart(ctx, env)
		if err != nil {
			return err
		}
		b, err := env.begin(ctx, data)
		if err != nil {
			return err
		}
		floors, all = append(floors, f), append(all, b)
	}
	row := func(name string, of func(beginning) time.Duration) {
		fmt.Fprintf(table, "%s\t%s\n", name, spread(collect(all[1:], of)))
	}
	fmt.Fprintln(table, "from exec to\tmedian (spread)")
	fmt.Fprintf(table, "a bare server's first 200\t%s\n", spread(floors[1:]))
	row("the operator's first 200", func(b beginning) time.Duration { return b.operator })
	row("the same, CPU", func(b beginning) time.Duration { return b.operatorCPU })
	row("the task's main function", func(b beginning) time.Duration { return b.main })
	row("the task's first 200", func(b beginning) time.Duration { return b.task })
	row("the same, CPU", func(b beginning) time.Duration { return b.taskCPU })
	fmt.Fprintf(table, "the task's first 200, with a new key ring\t%s\n", millis(all[0].task))
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

// begin starts taskapi, and ends it once its task has got an answer.
func (env *environment) begin(ctx context.Context, data string) (b beginning, err error) {
	file := env.path(".first")
	s, err := env.agent(data, server(env.self, "role-first", file))
	if err != nil {
		return b, err
	}
	defer s.stopInto(&err)
	if b.operator, err = s.answersOperator(ctx); err != nil {
		return b, err
	}
	b.operatorCPU = env.cpu()
	var answer firstAnswer
	err = s.until(ctx, "the task's first 200", startTime, time.Millisecond, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(text, &answer) == nil // half a file is no JSON
	})
	b.taskCPU = env.cpu()
	b.main, b.task = time.Unix(0, answer.Main).Sub(s.started), time.Unix(0, answer.First).Sub(s.started)
	return b, err
}

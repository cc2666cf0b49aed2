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

	"taskapi/internal/slice"
	"taskapi/internal/wake"
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
		if ended := wake.Sleep(ctx, pollInterval); ended != nil {
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

// firstAnswer waits for a task's firstAnswer in a file, and returns how long both took from exec.
func (p *process) firstAnswer(ctx context.Context, file string) (main, first time.Duration, err error) {
	var answer firstAnswer
	err = p.until(ctx, "the task's first 200", startTime, time.Millisecond, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(text, &answer) == nil // half a file is no JSON
	})
	return time.Unix(0, answer.Main).Sub(p.started), time.Unix(0, answer.First).Sub(p.started), err
}

type beginning struct {
	operator, main, task time.Duration // to the operator's first 200, the task's main function, its first 200
	operatorCPU, taskCPU time.Duration // of taskapi, its keeper and the task, until these answers were seen
}

func (env *environment) starts(ctx context.Context, _ options) ([]sample, error) {
	var all []beginning
	for range startsPerRound {
		b, err := env.begin(ctx, env.data)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	row := func(figure string, of func(beginning) time.Duration) sample {
		return timeSample(figure, median(slice.Map(all, of)))
	}
	return []sample{
		row(firstAnswerFigure, func(b beginning) time.Duration { return b.operator }),
		row("the same, CPU", func(b beginning) time.Duration { return b.operatorCPU }),
		row(mainFigure, func(b beginning) time.Duration { return b.main }),
		row(taskAnswerFigure, func(b beginning) time.Duration { return b.task }),
		row("the task's, CPU", func(b beginning) time.Duration { return b.taskCPU }),
	}, nil
}

// What the starts of several programs have in common.
const (
	firstAnswerFigure = "the operator's first 200"
	mainFigure        = "the task's main function"
	taskAnswerFigure  = "the task's first 200"
)

func (env *environment) floorStarts(ctx context.Context, _ options) ([]sample, error) {
	var all []time.Duration
	for range startsPerRound {
		f, err := env.floor(ctx, emptyReply, get("/", "none"))
		if f != nil {
			all = append(all, time.Since(f.started))
			f.stopInto(&err)
		}
		if err != nil {
			return nil, err
		}
	}
	return []sample{timeSample(firstAnswerFigure, median(all))}, nil
}

var emptyReply = reply{contentType: "application/json", body: []byte("{}")}

// begin starts taskapi, and ends it once its task has got an answer.
func (env *environment) begin(ctx context.Context, data string) (b beginning, err error) {
	file := env.path(".first")
	s, took, err := env.fresh(ctx, data, server(env.self, "role-first", file))
	if s != nil {
		defer s.stopInto(&err)
	}
	if err != nil {
		return b, err
	}
	b.operator = took
	b.operatorCPU = env.cpu()
	b.main, b.task, err = s.firstAnswer(ctx, file)
	b.taskCPU = env.cpu()
	return b, err
}

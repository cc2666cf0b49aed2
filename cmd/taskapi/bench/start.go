package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"taskapi/internal/wake"
)

// pollInterval is how often a start is looked at from outside; it bounds the error of the figure.
const pollInterval = 200 * time.Microsecond

// startsPerRound is how often each start is measured in a round: a start takes milliseconds, and varies more than a
// second of requests.
const startsPerRound = 4

// firstRole is a task that sends a request at once. It writes when its first 200 had come into the file that its
// argument names, in nanoseconds of the wall clock.
func firstRole(ctx context.Context, args []string) error {
	socket := strings.TrimPrefix(os.Getenv("NOMAD_UNIX_ADDR"), "unix://")
	request := get(allocationPath(os.Getenv("NOMAD_ALLOC_ID")), os.Getenv("NOMAD_TOKEN"))
	for {
		r, err := exchange(socket, request)
		if err == nil && r.status == http.StatusOK {
			break
		}
		if ended := wake.Sleep(ctx, pollInterval); ended != nil {
			return errors.Join(ended, err)
		}
	}
	if err := os.WriteFile(args[0], fmt.Appendln(nil, time.Now().UnixNano()), 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// firstAnswer waits for what firstRole writes into a file, and returns how long the answer took from exec.
func (p *process) firstAnswer(ctx context.Context, file string) (took time.Duration, err error) {
	var at int64
	err = p.until(ctx, "the task's first 200", time.Millisecond, func() bool {
		text, err := os.ReadFile(file)
		if err == nil && bytes.HasSuffix(text, []byte("\n")) {
			at, err = strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		}
		return err == nil && at > 0
	})
	return time.Unix(0, at).Sub(p.started), err
}

// starts measures from exec to the first answers, and the CPU time of taskapi, its keeper and the task until then.
func (env *environment) starts(ctx context.Context, _ options) (samples []sample, err error) {
	figures := []string{firstAnswerFigure, "the same, CPU", taskAnswerFigure, "the task's, CPU"}
	all := make([][]time.Duration, len(figures))
	for range startsPerRound {
		times, err := env.begin(ctx)
		if err != nil {
			return nil, err
		}
		for i, d := range times {
			all[i] = append(all[i], d)
		}
	}
	for i, figure := range figures {
		samples = append(samples, timeSample(figure, median(all[i])))
	}
	return samples, nil
}

// What the starts of several programs have in common.
const (
	firstAnswerFigure = "the operator's first 200"
	taskAnswerFigure  = "the task's first 200"
)

func (env *environment) floorStarts(ctx context.Context, _ options) ([]sample, error) {
	var all []time.Duration
	for range startsPerRound {
		f, err := env.floor(ctx, emptyReply, get("/", "none"))
		if err != nil {
			return nil, err
		}
		all = append(all, time.Since(f.started))
		if f.stopInto(&err); err != nil {
			return nil, err
		}
	}
	return []sample{timeSample(firstAnswerFigure, median(all))}, nil
}

var emptyReply = reply{contentType: "application/json", body: []byte("{}")}

// begin starts taskapi, ends it once its task has got an answer, and returns what starts measures.
func (env *environment) begin(ctx context.Context) (_ []time.Duration, err error) {
	file := env.path(".first")
	s, operator, err := env.agent(ctx, env.data, job(1, env.self, "role-first", file))
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	used := env.cpu()
	task, err := s.firstAnswer(ctx, file)
	return []time.Duration{operator, used, task, env.cpu()}, err
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"taskapi/internal/load"
)

// warmup is how long a round runs before it counts: connections are made and caches filled.
const warmup = 200 * time.Millisecond

// ours is the task of the taskapi that the rounds share.
func (env *environment) ours(ctx context.Context) (target, error) {
	s, err := env.shared(ctx, 1)
	if err != nil {
		return target{}, err
	}
	return s.target(0)
}

// answers sends the same request on several numbers of connections, and requests that differ from each other.
func answers(ctx context.Context, o options, same target) (all []sample, err error) {
	differing := same
	differing.requests = differ(same.requests[0])
	for _, row := range []struct {
		name        string
		target      target
		connections int
	}{{"1 connection", same, 1}, {"8", same, 8}, {"16", same, 16}, {"8, no two heads alike", differing, 8}} {
		r, err := drive(ctx, row.target, row.connections, 0, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.name, err)
		}
		all = append(all, answerSample(row.name+": an answer", r), timeSample(row.name+": its CPU", r.CPU),
			timeSample(row.name+": p99", r.Percentile(99)))
	}
	return all, nil
}

// answerSample is the time from an answer to the next one. It is printed as a rate, too.
func answerSample(figure string, r load.Result) sample {
	return sample{figure, func(nanoseconds float64) string {
		return fmt.Sprintf("%s (%.0f/s)", duration(nanoseconds), 1e9/nanoseconds)
	}, 1e9 / r.Rate()}
}

// differ returns variants of a request, which differ by a header; they are many, so that none comes again soon.
func differ(request []byte) (variants [][]byte) {
	head := bytes.TrimSuffix(request, []byte("\r\n"))
	for i := range 20_000 {
		variants = append(variants, fmt.Appendf(nil, "%sX-Request-Id: %d\r\n\r\n", head, i))
	}
	return variants
}

// longestRound is how long a round waits for its first reply.
const longestRound = time.Minute

// drive sends the target's requests for a round. Each connection rests for the pause between a reply and its next
// request.
func drive(ctx context.Context, t target, connections int, pause time.Duration, o options) (r load.Result, err error) {
	for length := o.of(time.Second); err == nil && r.Replies == 0; length *= 4 { // on a busy machine, nobody answers soon
		if length > longestRound {
			return r, fmt.Errorf("no reply on %s in %v: give -seconds more", t.socket, longestRound)
		}
		r, err = load.Run(ctx, load.Config{
			Socket: t.socket, Connections: connections, Requests: t.requests, Server: t.pid,
			Warmup: warmup, For: length, Pause: pause,
		})
	}
	return r, err
}

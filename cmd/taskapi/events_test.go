package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

// streamLine is a line of the stream.
type streamLine struct {
	api.Events
	Error string
}

// openEvents returns the lines of the stream from an index on, and what closes it.
func openEvents(t *testing.T, client *api.Client, index uint64) (next func() (streamLine, error), done func()) {
	t.Helper()
	body := must.Get(client.Raw().Response(fmt.Sprintf("/v1/event/stream?index=%d", index), nil))(t)
	lines := json.NewDecoder(body)
	return func() (streamLine, error) {
		for {
			var line streamLine
			err := lines.Decode(&line)
			if err != nil || line.Error != "" || len(line.Events.Events) > 0 {
				return line, err
			}
		}
	}, func() { body.Close() }
}

// untilEvent reads lines until one has it, and returns their indexes, with the topics, types and keys of their events.
func untilEvent(t *testing.T, next func() (streamLine, error), what string,
	has func(streamLine) bool) (seen []string, last uint64) {
	t.Helper()
	for {
		line, err := next()
		if err != nil {
			t.Fatalf("the stream ended before %s: %v, after %q", what, err, seen)
		}
		if line.Error != "" {
			t.Errorf("the stream says %q", line.Error)
			continue
		}
		var events strings.Builder
		for _, e := range line.Events.Events {
			fmt.Fprintf(&events, " %s/%s/%s", e.Topic, e.Type, e.Key)
		}
		seen, last = append(seen, fmt.Sprint(line.Index, events.String())), line.Index
		if has(line) {
			return seen, last
		}
	}
}

// allocIn returns the allocation of a line, nil for none.
func allocIn(line streamLine) *api.Allocation {
	for _, e := range line.Events.Events {
		if alloc, err := e.Allocation(); err == nil && alloc != nil {
			return alloc
		}
	}
	return nil
}

// TestEventsAreResumed reads the stream as one client that stays and as one that connects again after each line: both
// get the same.
func TestEventsAreResumed(t *testing.T) {
	t.Parallel()
	_, client := startPrompt(t)
	const restarts = 3
	ended := func(line streamLine) bool {
		alloc := allocIn(line)
		return alloc != nil && alloc.ClientTerminalStatus() && alloc.TaskStates["t"].State == "dead"
	}
	// its lines, and how often the task had been restarted in each where it runs
	staying, running := make(chan []string, 1), make(chan uint64, 100)
	next, done := openEvents(t, client, 0)
	defer done()
	go func() {
		defer close(running)
		seen, _ := untilEvent(t, next, "the end", func(line streamLine) bool {
			if alloc := allocIn(line); alloc != nil && alloc.TaskStates["t"].State == "running" {
				running <- alloc.TaskStates["t"].Restarts
			}
			return ended(line)
		})
		staying <- seen
	}()
	again := make(chan []string, 1)
	go func() {
		var all []string
		for index, over := uint64(0), false; !over; index++ {
			next, done := openEvents(t, client, index)
			seen, last := untilEvent(t, next, "the next", func(line streamLine) bool { over = ended(line); return true })
			done()
			if last < index {
				t.Errorf("index %d comes to the client that has it and resumes at %d", last, index)
				over = true
			}
			all, index = append(all, seen...), last
		}
		again <- all
	}()
	alloc := &api.Allocation{ID: testAllocID}
	for i := range restarts {
		must.OK(t, client.Allocations().Restart(alloc, "t", nil))
		for seen := range running { // lest one line has several restarts
			if seen == uint64(i+1) {
				break
			}
		}
	}
	must.Get(client.Allocations().Stop(alloc, nil))(t)
	whole, pieces := <-staying, <-again
	if !slices.Equal(whole, pieces) {
		t.Errorf("the client that stays has read\n%q\nand the other\n%q", whole, pieces)
	}
	seen, counts := map[string]bool{}, map[string]int{}
	for _, line := range whole {
		for _, e := range strings.Fields(line)[1:] {
			topic, _, _ := strings.Cut(e, "/")
			if topic == "Allocation" {
				continue
			}
			if counts[topic]++; seen[e] {
				t.Errorf("%s comes twice", e)
			}
			seen[e] = true
		}
	}
	// An evaluation of the placement, and one of the stop: each pending and complete. The deployment begins, and is
	// cancelled.
	want := map[string]int{"Node": 1, "Job": 1, "Evaluation": 4, "Deployment": 2}
	if !maps.Equal(counts, want) || len(whole) <= restarts {
		t.Errorf("events %v, want %v, and a line for each of %d restarts:\n%s", counts, want, restarts,
			strings.Join(whole, "\n"))
	}
}

// TestEventsAcrossProcesses resumes the stream in the next taskapi: nothing is repeated, and the allocation's state is
// there.
func TestEventsAcrossProcesses(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, p taskapiProcess){
		"left": func(t *testing.T, p taskapiProcess) {
			must.OK(t, p.Process.Signal(syscall.SIGUSR1))
			must.OK(t, p.Wait())
		},
		"killed": func(t *testing.T, p taskapiProcess) { kill(t, p) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			job := jobFile(t, promptJob)
			p := startProcess(t, dir, job)
			running := func(line streamLine) bool {
				alloc := allocIn(line)
				return alloc != nil && alloc.ClientStatus == api.AllocClientStatusRunning
			}
			next, done := openEvents(t, stockClient(t, p, dir), 0)
			_, last := untilEvent(t, next, "the task runs", running)
			end(t, p)
			for line, err := next(); err == nil; line, err = next() {
				last = max(last, line.Index)
			}
			done()

			p = startProcess(t, dir, job)
			t.Cleanup(func() { kill(t, p) })
			client := stockClient(t, p, dir)
			next, done = openEvents(t, client, last+1)
			defer done()
			must.Get(client.Allocations().Stop(&api.Allocation{ID: testAllocID}, nil))(t)
			before := last
			seen, _ := untilEvent(t, next, "the end", func(line streamLine) bool {
				// One without a version of the allocation has the index of the line before.
				if line.Index <= last || line.Index < before || line.Index == before && allocIn(line) != nil {
					t.Errorf("index %d comes again", line.Index)
				}
				before = line.Index
				alloc := allocIn(line)
				return alloc != nil && alloc.ClientTerminalStatus()
			})
			if len(seen) == 0 {
				t.Error("no events")
			}

			next, done = openEvents(t, client, 1)
			defer done()
			if line, err := next(); err != nil || !strings.Contains(line.Error, "may be lost") {
				t.Errorf("from the beginning: %+v, %v, want a line that says what is lost", line, err)
			}
		})
	}
}

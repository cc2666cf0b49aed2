package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// The clients that wait, spread over the sockets of tasks: a socket takes 64 of each kind.
const (
	waitingTasks   = 8
	waitingQueries = 500
	eventStreams   = 100
)

// waitRounds is how many seconds a round of waiting lasts for each of -seconds.
const waitRounds = 5

// signalPause is the pause between the signals that make events: they come in batches, a line of the stream for some of them.
const signalPause = 50 * time.Millisecond

// A waitsReport is what clients cost that wait. Processor times are in percent of one core, of the agent alone.
type waitsReport struct {
	Idle, Queries, Streams figure  // nobody waits; so many blocking queries; so many event streams
	QueryBytes             float64 // of memory (PSS) for each blocking query, its connection included
	StreamBytes            float64 // the same of an event stream

	Signals     figure  // processor time of signals alone
	Fanout      figure  // and with the streams, to each of which their events go
	Lines       float64 // that arrived on all streams together, each second
	LineBytes   float64 // of a line
	LineMicros  float64 // processor time of a line, in microseconds
	QueriesOver float64 // processor time of the blocking queries beyond Idle
}

// measureWaits looks at the agent while nobody waits, while blocking queries do, and while event streams do, at rest and with events.
func measureWaits(ctx context.Context, env *environment, o options) (_ *waitsReport, err error) {
	s, err := env.group(ctx, callers(waitingTasks), waitingTasks)
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	r := &waitsReport{}
	idle, err := s.rested(ctx, o, &r.Idle)
	if err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/v1/allocation/%s?index=1000000&wait=10m", s.allocID) // an index that does not come
	held, err := s.held(waitingQueries, path, nil)
	if err != nil {
		return nil, err
	}
	waiting, err := s.rested(ctx, o, &r.Queries)
	held.close()
	if err != nil {
		return nil, err
	}
	r.QueryBytes, r.QueriesOver = float64(waiting-idle)/waitingQueries, r.Queries.Median-r.Idle.Median

	if r.Signals, err = s.signalled(ctx, o); err != nil {
		return nil, err
	}
	if err := o.rest(ctx); err != nil {
		return nil, err
	}
	before, err := memoryOf([]int{s.cmd.Process.Pid})
	if err != nil {
		return nil, err
	}
	var lines, bytes atomic.Int64
	held, err = s.held(eventStreams, "/v1/event/stream", func(line []byte) {
		if len(line) > 3 { // no heartbeat
			lines.Add(1)
			bytes.Add(int64(len(line)))
		}
	})
	if err != nil {
		return nil, err
	}
	defer held.close()
	streaming, err := s.rested(ctx, o, &r.Streams)
	if err != nil {
		return nil, err
	}
	r.StreamBytes = float64(streaming-before.PSS) / eventStreams
	lines.Store(0)
	bytes.Store(0)
	began := time.Now()
	if r.Fanout, err = s.signalled(ctx, o); err != nil {
		return nil, err
	}
	if n := float64(lines.Load()); n > 0 {
		r.Lines, r.LineBytes = n/time.Since(began).Seconds(), float64(bytes.Load())/n
		r.LineMicros = (r.Fanout.Median - r.Signals.Median) / 100 / r.Lines * 1e6
	}
	return r, nil
}

// unpaced is longer than the time for which an agent paces its sockets, by a timer of some milliseconds, after two were in use.
const unpaced = 12 * time.Second

// rested returns the agent's memory after a rest, and the processor time that it takes in rounds.
func (s *agent) rested(ctx context.Context, o options, share *figure) (pss int64, err error) {
	if err := errors.Join(o.rest(ctx), wait(ctx, o.of(unpaced))); err != nil {
		return 0, err
	}
	m, err := memoryOf([]int{s.cmd.Process.Pid})
	if err != nil {
		return 0, err
	}
	*share, err = s.rounds(ctx, o)
	return m.PSS, err
}

func (s *agent) rounds(ctx context.Context, o options) (figure, error) {
	var all []float64
	for range o.rounds {
		began, before := time.Now(), ranTime(s.cmd.Process.Pid)
		if err := wait(ctx, o.of(waitRounds*time.Second)); err != nil {
			return figure{}, err
		}
		ran := ranTime(s.cmd.Process.Pid) - before
		all = append(all, 100*ran.Seconds()/time.Since(began).Seconds())
	}
	return figureOf(all), nil
}

// signalled is rounds while a task is sent signals that change nothing but its events.
func (s *agent) signalled(ctx context.Context, o options) (_ figure, err error) {
	ctx, stop := context.WithCancel(ctx)
	var sending sync.WaitGroup
	var failed error
	sending.Go(func() {
		for wait(ctx, signalPause) == nil {
			r, err := s.asOperator(func(token string) []byte {
				return put("/v1/client/allocation/"+s.allocID+"/signal", token, `{"Signal":"SIGCONT","Task":"t0"}`)
			})
			if err == nil && r.status != http.StatusOK {
				err = fmt.Errorf("a signal: status %d", r.status)
			}
			failed = errors.Join(failed, err)
		}
	})
	share, err := s.rounds(ctx, o)
	stop()
	sending.Wait()
	return share, errors.Join(err, failed)
}

// held are connections that wait for an answer, or for its next line.
type held struct {
	conns   []net.Conn
	reading sync.WaitGroup
}

// held opens so many connections, in turn on the sockets of the tasks, and has each wait for the answer to a request. line gets each line of
// it; nil for requests that are not answered.
func (s *agent) held(connections int, path string, line func([]byte)) (*held, error) {
	h := &held{}
	for i := range connections {
		t, err := s.caller(i % waitingTasks)
		if err == nil {
			err = h.open(t, filepath.Join(s.dir, fmt.Sprintf("t%d", i%waitingTasks)), path, line)
		}
		if err != nil {
			h.close()
			return nil, err
		}
	}
	return h, nil
}

func (h *held) open(t target, dir, path string, line func([]byte)) error {
	token, err := tokenIn(dir)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", t.socket)
	if err != nil {
		return err
	}
	h.conns = append(h.conns, conn)
	if _, err := conn.Write(get(path, token)); err != nil || line == nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d", path, response.StatusCode)
	}
	if err != nil {
		return err
	}
	h.reading.Go(func() {
		lines := bufio.NewReader(response.Body)
		for {
			text, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			line(text)
		}
	})
	return nil
}

func (h *held) close() {
	for _, conn := range h.conns {
		_ = conn.Close() // what it waits for is not wanted
	}
	h.reading.Wait()
}

func (r *waitsReport) print(w io.Writer) {
	percent := func(f figure) string { return f.in("%", 1, 3) }
	fmt.Fprintln(w, "clients that wait\tof a core (spread)\tmemory of each (PSS)")
	fmt.Fprintf(w, "none\t%s\t\n", percent(r.Idle))
	fmt.Fprintf(w, "%d blocking queries\t%s\t%.1f KB\n", waitingQueries, percent(r.Queries), r.QueryBytes/1e3)
	fmt.Fprintf(w, "%d event streams\t%s\t%.1f KB\n", eventStreams, percent(r.Streams), r.StreamBytes/1e3)
	fmt.Fprintf(w, "signals, without streams\t%s\t\n", percent(r.Signals))
	fmt.Fprintf(w, "signals, with %d streams\t%s\t%.0f lines/s of %.1f KB, %.0f us each\n\n", eventStreams, percent(r.Fanout), r.Lines, r.LineBytes/1e3,
		r.LineMicros)
}

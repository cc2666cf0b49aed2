package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// restartReport holds how long a restart by the API takes, beside what the same program takes by itself.
type restartReport struct {
	Restart  spread // from the request to the new process's main function
	Reply    spread // from the request to its answer
	OwnStop  spread // from the signal to the end of the same program, started and signalled by this one
	OwnStart spread // from exec to the main function of the same program, started by this one
	Beyond   spread // Restart without OwnStop, of a pair measured in turn; exec to main is in it
}

// beginRole is the task that is restarted: it reports the time of its beginning to the socket that is its argument, in nanoseconds
// of the wall clock, and ends at once when it is signalled.
func beginRole(ctx context.Context, args []string) error {
	began := time.Now().UnixNano()
	if len(args) != 1 {
		return fmt.Errorf("the task takes a socket, not %q", args)
	}
	conn, err := net.Dial("unixgram", args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, began); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// A births is where processes in the role report to.
type births struct {
	*net.UnixConn
	socket string
}

func (env *environment) births() (births, error) {
	socket := env.path(".births")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	return births{conn, socket}, err
}

// next waits for the next beginning.
func (b births) next() (time.Time, error) {
	text := make([]byte, 64) // more than a time is long
	if err := b.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		return time.Time{}, err
	}
	n, err := b.Read(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("wait for a process to begin: %w", err)
	}
	ns, err := strconv.ParseInt(string(text[:n]), 10, 64)
	return time.Unix(0, ns), err
}

func measureRestart(ctx context.Context, env *environment, o options) (report *restartReport, err error) {
	of, err := env.births()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, of.Close()) }()
	s, err := env.agent(env.path(".data"), nil, "role-begin", of.socket)
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	if _, err := s.begins(of); err != nil {
		return nil, err
	}
	if err := s.allRun(ctx, 1); err != nil {
		return nil, err
	}
	var restarts, replies, stops, starts, beyond []time.Duration
	for range startsPerRound * o.rounds {
		begin, end, err := ownTimes(ctx, env, of)
		if err != nil {
			return nil, err
		}
		restart, reply, err := restartOnce(ctx, s, of)
		if err != nil {
			return nil, err
		}
		starts, stops, restarts = append(starts, begin), append(stops, end), append(restarts, restart)
		replies, beyond = append(replies, reply), append(beyond, restart-end)
	}
	return &restartReport{
		Restart: spreadOf(restarts), Reply: spreadOf(replies), OwnStop: spreadOf(stops), OwnStart: spreadOf(starts), Beyond: spreadOf(beyond),
	}, nil
}

// restartOnce restarts the task. It returns when the API shows the new process to run, so that the next request finds it there.
func restartOnce(ctx context.Context, s *agent, of births) (restart, reply time.Duration, err error) {
	requested := time.Now()
	r, err := s.asOperator(func(token string) []byte {
		return put("/v1/client/allocation/"+s.allocID+"/restart", token, fmt.Sprintf(`{"TaskName":%q}`, taskName))
	})
	reply = time.Since(requested)
	if err == nil && r.status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", r.status, r.body)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("restart the task: %w", err)
	}
	began, err := s.begins(of)
	if err != nil {
		return 0, 0, err
	}
	return began.Sub(requested), reply, s.allRun(ctx, 1)
}

// begins waits for the task's next beginning. Its error carries what taskapi printed, which says why there was none.
func (s *agent) begins(of births) (time.Time, error) {
	began, err := of.next()
	if err != nil {
		err = errors.Join(err, s.stop()) // what it printed is complete after that
		err = fmt.Errorf("%w; taskapi printed:\n%s", err, lastLines(s.output.String(), 20))
	}
	return began, err
}

// ownTimes starts the same program without taskapi, and ends it with the signal that taskapi uses.
func ownTimes(ctx context.Context, env *environment, of births) (begin, end time.Duration, err error) {
	p, err := start(env.self, "role-begin", of.socket)
	if err != nil {
		return 0, 0, err
	}
	defer p.stopInto(&err)
	began, err := of.next()
	if err != nil {
		return 0, 0, err
	}
	signalled := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return 0, 0, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	return began.Sub(p.started), time.Since(signalled), p.err
}

func (r *restartReport) print(w io.Writer) {
	fmt.Fprintln(w, "restart of a task by the API\tmedian (spread)")
	fmt.Fprintf(w, "from the request to the new process\t%v\n", r.Restart)
	fmt.Fprintf(w, "the same program's own stop\t%v\n", r.OwnStop)
	fmt.Fprintf(w, "the first without the second\t%v\n", r.Beyond)
	fmt.Fprintf(w, "of which the same program's own start is\t%v\n", r.OwnStart)
	fmt.Fprintf(w, "from the request to its answer\t%v\n\n", r.Reply)
}

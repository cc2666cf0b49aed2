package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// execReport holds how long it takes to run /bin/true: in a task over the operator's socket, from the command line, by this program, and by
// nsenter in this program's own namespaces.
type execReport struct {
	Socket  spread // from the connection's beginning to the exit code
	Command spread // taskapi exec, from exec to its end
	Fork    spread // the same program started and waited for by this one
	Nsenter *spread
	PerFork ratio // Socket / Fork, of pairs measured in turn
	// PerNsenter is Socket / Nsenter, nil where there is no nsenter, or it takes root.
	PerNsenter *ratio
}

// trueProgram is what is run.
const trueProgram = "/bin/true"

// execsPerRound is how often each way is measured in a round.
const execsPerRound = 20

func measureExec(ctx context.Context, env *environment, o options) (report *execReport, err error) {
	of, err := env.births()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, of.Close()) }()
	dataDir := env.path(".data")
	s, err := env.agent(dataDir, nil, "role-begin", of.socket)
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
	self := strconv.Itoa(os.Getpid())
	ways := []func() error{
		func() error { return s.execOnce(ctx) },
		func() error {
			return exec.CommandContext(ctx, env.binary, "exec", "--data-dir", dataDir, "--", trueProgram).Run()
		},
		func() error { return exec.CommandContext(ctx, trueProgram).Run() },
		func() error {
			return exec.CommandContext(ctx, "nsenter", "--target", self, "--mount", "--uts", "--ipc", "--net", "--pid", trueProgram).Run()
		},
	}
	entered := ways[3]() == nil
	if !entered {
		ways = ways[:3]
	}
	times := make([][]time.Duration, len(ways))
	for range execsPerRound * o.rounds {
		for i, way := range ways {
			began := time.Now()
			if err := way(); err != nil {
				return nil, err
			}
			times[i] = append(times[i], time.Since(began))
		}
	}
	report = &execReport{Socket: spreadOf(times[0]), Command: spreadOf(times[1]), Fork: spreadOf(times[2]), PerFork: pairs(times[0], times[2])}
	if entered {
		enter, per := spreadOf(times[3]), pairs(times[0], times[3])
		report.Nsenter, report.PerNsenter = &enter, &per
	}
	return report, nil
}

// pairs returns the ratio of times that were measured in turn.
func pairs(above, below []time.Duration) ratio {
	each := make([]float64, len(above))
	for i := range above {
		each[i] = float64(above[i]) / float64(below[i])
	}
	f := figureOf(each)
	return ratio{Median: float64(median(above)) / float64(median(below)), Min: f.Min, Max: f.Max}
}

// execOnce runs the program in the task, and reads its exit code.
func (s *agent) execOnce(ctx context.Context) error {
	token, err := os.ReadFile(s.operatorToken())
	if err != nil {
		return err
	}
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.operatorSocket())
	}}
	query := url.Values{"task": {taskName}, "command": {strconv.Quote(trueProgram)}}
	query.Set("command", "["+query.Get("command")+"]")
	target := "ws://bench/v1/client/allocation/" + s.allocID + "/exec?" + query.Encode()
	header := http.Header{"X-Nomad-Token": {strings.TrimSpace(string(token))}}
	conn, response, err := dialer.DialContext(ctx, target, header) //nolint:bodyclose // the library has read it whole
	if err != nil {
		if response != nil {
			text, _ := io.ReadAll(response.Body) // the status says enough
			err = fmt.Errorf("%w: %s %s", err, response.Status, text)
		}
		return err
	}
	defer conn.Close()
	for {
		var frame struct {
			Exited bool `json:"exited"`
			Result struct {
				ExitCode int `json:"exit_code"`
			} `json:"result"`
		}
		if err := conn.ReadJSON(&frame); err != nil {
			return err
		}
		if frame.Exited && frame.Result.ExitCode != 0 {
			return fmt.Errorf("%s ended with %d", trueProgram, frame.Result.ExitCode)
		}
		if frame.Exited {
			return nil
		}
	}
}

func (r *execReport) print(w io.Writer) {
	fmt.Fprintln(w, "run /bin/true\tmedian (spread)")
	fmt.Fprintf(w, "in a task, over the socket\t%v\n", r.Socket)
	fmt.Fprintf(w, "in a task, by taskapi exec\t%v\n", r.Command)
	fmt.Fprintf(w, "by fork and exec\t%v\n", r.Fork)
	fmt.Fprintf(w, "the first over that\t%v\n", r.PerFork)
	if r.Nsenter != nil {
		fmt.Fprintf(w, "by nsenter\t%v\n", *r.Nsenter)
		fmt.Fprintf(w, "the first over that\t%v\n", *r.PerNsenter)
	}
	fmt.Fprintln(w)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// idleTasks is how many tasks an idle taskapi has, but for the one that the checks ask.
	idleTasks = 100
	// idleRounds is how many seconds an idle round lasts for each of -seconds: the kernel counts processor time in hundredths of a
	// second.
	idleRounds = 5
	// userHZ is how many units of proc_pid_stat(5) a second has, on every architecture that Go runs on with Linux.
	userHZ = 100
)

// idleGroup has a server that the checks ask; what goes in are this program and the sleeping tasks.
const idleGroup = `
    network {
      port "http" {}
    }
    task "server" {
      driver = "raw_exec"
      config {
        command = %s
        args    = ["role-task"]
      }
    }
%s`

// checkedService gives a task a check once a second; what goes in are a number and the type.
const checkedService = `
      service {
        name     = "s%d"
        provider = "nomad"
        port     = "http"
        check {
          type     = %q
          path     = %q
          interval = "1s"
          timeout  = "1s"
        }
      }
`

// An idleRow is the processor time that taskapi takes while nothing happens, in percent of one core.
type idleRow struct {
	Tasks, Checks int
	Agent, Keeper figure
}

// measureIdle lets tasks sleep, without checks and with one for each, every second: half of them http, half tcp.
func measureIdle(ctx context.Context, env *environment, o options) (rows []idleRow, err error) {
	tasks := min(idleTasks, o.most)
	for _, checks := range []int{0, tasks} {
		row, err := idle(ctx, env, o, tasks, checks)
		if err != nil {
			return nil, fmt.Errorf("%d checks: %w", checks, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func idle(ctx context.Context, env *environment, o options, tasks, checks int) (row idleRow, err error) {
	s, err := env.group(ctx, idleJob(env.self, tasks, checks), tasks+1)
	if err != nil {
		return row, err
	}
	defer s.stopInto(&err)
	if err := s.allSucceed(ctx, checks); err != nil {
		return row, err
	}
	if err := o.rest(ctx); err != nil {
		return row, err
	}
	keeper, err := s.keeper(env)
	if err != nil {
		return row, err
	}
	row = idleRow{Tasks: tasks + 1, Checks: checks}
	var agents, keepers []float64
	for range o.rounds {
		shares, err := shares(ctx, o.of(idleRounds*time.Second), s.cmd.Process.Pid, keeper)
		if err != nil {
			return row, err
		}
		agents, keepers = append(agents, shares[0]), append(keepers, shares[1])
	}
	row.Agent, row.Keeper = figureOf(agents), figureOf(keepers)
	return row, nil
}

// allSucceed waits until each of so many checks has succeeded.
func (s *agent) allSucceed(ctx context.Context, checks int) error {
	return s.until(ctx, "the checks to succeed", startTime, 20*time.Millisecond, func() bool {
		r, err := s.asOperator(func(token string) []byte { return get(s.checksPath(), token) })
		return err == nil && succeeded(r.body, checks)
	})
}

func idleJob(self string, tasks, checks int) string {
	var blocks strings.Builder
	for i := range tasks {
		service := ""
		switch {
		case i >= checks:
		case i%2 == 0:
			service = fmt.Sprintf(checkedService, i, "http", "/")
		default:
			service = fmt.Sprintf(checkedService, i, "tcp", "")
		}
		fmt.Fprintf(&blocks, sleeperTask, i, service)
	}
	return fmt.Sprintf(groupFile, fmt.Sprintf(idleGroup, strconv.Quote(self), blocks.String()))
}

// shares returns how much of a core each process takes during a time, in percent.
func shares(ctx context.Context, d time.Duration, pids ...int) ([]float64, error) {
	before := make([]float64, len(pids))
	began := time.Now()
	var err error
	for i, pid := range pids {
		if before[i], err = processorTime(pid); err != nil {
			return nil, err
		}
	}
	if err := wait(ctx, d); err != nil {
		return nil, err
	}
	elapsed := time.Since(began).Seconds()
	percents := make([]float64, len(pids))
	for i, pid := range pids {
		after, err := processorTime(pid)
		if err != nil {
			return nil, err
		}
		percents[i] = 100 * (after - before[i]) / elapsed
	}
	return percents, nil
}

// processorTime returns the seconds that all threads of a process have run, in user and in kernel mode.
func processorTime(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return parseProcessorTime(string(text))
}

// parseProcessorTime reads utime and stime, the 14th and 15th fields of proc_pid_stat(5). The second, the name, may hold blanks and
// parentheses.
func parseProcessorTime(stat string) (float64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat has %d fields after the name, want 13 at least", len(fields))
	}
	user, err := strconv.ParseFloat(fields[11], 64)
	kernel, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + kernel) / userHZ, errors.Join(err, err2)
}

func printIdle(w io.Writer, rows []idleRow) {
	fmt.Fprintln(w, "idle, in percent of a core\tchecks a second\tagent (spread)\tkeeper (spread)")
	for _, row := range rows {
		fmt.Fprintf(w, "%d tasks\t%d\t%s\t%s\n", row.Tasks, row.Checks, row.Agent.in("%", 1, 2), row.Keeper.in("%", 1, 2))
	}
	fmt.Fprintln(w)
}

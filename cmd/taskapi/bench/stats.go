package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// statsRounds is how many seconds a round lasts for each of -seconds, with one request in each.
const statsRounds = 5

// statsProcesses is how many processes the measured task has.
var statsProcesses = []int{1, 10, 100}

// manyProcesses is a task that does nothing with so many processes.
const manyProcesses = `
    task "` + taskName + `" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "i=1; while [ $i -lt %d ]; do sleep infinity & i=$((i+1)); done; exec sleep infinity"]
      }
    }
`

// A statsRow is the processor time that a GET of what a task uses costs, and that of reading the same files.
type statsRow struct {
	Processes     int
	Idle, Asked   figure        // in percent of a core, agent and keeper, without and with a request a second
	Request, Bare time.Duration // processor time of one request, and of one pass over the files
	Ratio         float64
}

// measureStats asks once a second what an idle task of some processes uses.
func measureStats(ctx context.Context, env *environment, o options) (rows []statsRow, err error) {
	for _, n := range statsProcesses {
		if n > o.most {
			continue
		}
		row, err := stats(ctx, env, o, n)
		if err != nil {
			return nil, fmt.Errorf("%d processes: %w", n, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func stats(ctx context.Context, env *environment, o options, n int) (row statsRow, err error) {
	s, err := env.group(ctx, fmt.Sprintf(groupFile, fmt.Sprintf(manyProcesses, n)), 1)
	if err != nil {
		return row, err
	}
	defer s.stopInto(&err)
	var pids []int
	if err := s.until(ctx, "the processes to run", startTime, 20*time.Millisecond, func() bool {
		pids = s.pids()
		return len(pids) == n
	}); err != nil {
		return row, err
	}
	if err := o.rest(ctx); err != nil {
		return row, err
	}
	keeper, err := s.keeper(env)
	if err != nil {
		return row, err
	}
	agent := s.cmd.Process.Pid
	row.Processes = n
	var idle, asked, request, bare []float64
	for range o.rounds {
		d := o.of(statsRounds * time.Second)
		for _, ask := range []bool{false, true} {
			before, began := ranTime(agent)+ranTime(keeper), time.Now()
			requests := 0
			for end := began.Add(d); time.Now().Before(end); requests++ {
				if ask && !s.getStats() {
					return row, errors.New("what the task uses is not answered")
				}
				if err := wait(ctx, time.Second); err != nil {
					return row, err
				}
			}
			used := (ranTime(agent) + ranTime(keeper) - before).Seconds()
			share := 100 * used / time.Since(began).Seconds()
			if ask {
				asked, request = append(asked, share), append(request, max(0, used-idle[len(idle)-1]/100*time.Since(began).Seconds())/float64(requests))
			} else {
				idle = append(idle, share)
			}
		}
		cost, err := readBare(pids)
		if err != nil {
			return row, err
		}
		bare = append(bare, cost.Seconds())
	}
	row.Idle, row.Asked = figureOf(idle), figureOf(asked)
	row.Request, row.Bare = time.Duration(median(request)*1e9), time.Duration(median(bare)*1e9)
	row.Ratio = median(request) / median(bare)
	return row, nil
}

// getStats asks what the tasks use, and reports whether that is answered.
func (s *agent) getStats() bool {
	r, err := s.asOperator(func(token string) []byte { return get("/v1/client/allocation/"+s.allocID+"/stats", token) })
	return err == nil && r.status == http.StatusOK && strings.Contains(string(r.body), `"`+taskName+`"`)
}

// pids returns the processes of the task, by its cgroup or by the environment that they have.
func (s *agent) pids() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || !strings.Contains("\x00"+string(env), "\x00NOMAD_ALLOC_ID="+s.allocID+"\x00") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// barePasses is how often the files are read for one figure.
const barePasses = 200

// readBare returns how long it takes to read what the kernel says of the processes: the file of each, and those of the cgroup of the first.
func readBare(pids []int) (time.Duration, error) {
	group := cgroupOf(pids[0])
	began := time.Now()
	for range barePasses {
		for _, pid := range pids {
			if _, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil {
				return 0, err
			}
		}
		for _, name := range []string{"cgroup.procs", "cpu.stat", "memory.current", "memory.stat"} {
			_, _ = os.ReadFile(filepath.Join(group, name)) // there may be none, or without this controller
		}
	}
	return time.Since(began) / barePasses, nil
}

// cgroupOf returns the directory of a process's cgroup of version 2, where that is mounted in one of the usual places.
func cgroupOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
				if _, err := os.Stat(root + path + "/cgroup.procs"); err == nil {
					return root + path
				}
			}
		}
	}
	return ""
}

// ranTime returns how long the threads of a process have run, to the nanosecond; those that have ended are not counted.
func ranTime(pid int) (sum time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		ran, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseInt(ran, 10, 64) // the kernel writes numbers
		sum += time.Duration(ns)
	}
	return sum
}

func printStats(w io.Writer, rows []statsRow) {
	fmt.Fprintln(w, "GET stats once a second, processes\tidle (spread)\tasked (spread)\tone request\tthe files alone\tratio")
	for _, row := range rows {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%.1f\n", row.Processes, row.Idle.in("%", 1, 2), row.Asked.in("%", 1, 2),
			micros(row.Request), micros(row.Bare), row.Ratio)
	}
	fmt.Fprintln(w)
}

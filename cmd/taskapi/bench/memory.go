package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// settle is how long a server is left alone before it is looked at, for each of -seconds.
const settle = 2 * time.Second

// memory is in bytes. RSS counts shared pages in full, PSS by share.
type memory struct {
	Processes int
	RSS, PSS  int64
}

type memoryReport struct {
	Floor memory
	Ours  memory // taskapi and its keeper; not the task
}

// measureMemory reads the memory of both servers after one request and a rest.
func measureMemory(ctx context.Context, env *environment, o options) (report *memoryReport, err error) {
	p, err := env.pair(ctx)
	if err != nil {
		return nil, err
	}
	defer p.stopInto(&err)
	if err := o.rest(ctx); err != nil {
		return nil, err
	}
	pids, err := processesOf(env.binary)
	if err != nil {
		return nil, err
	}
	report = &memoryReport{}
	if report.Ours, err = memoryOf(pids); err != nil {
		return nil, err
	}
	report.Floor, err = memoryOf([]int{p.floor.cmd.Process.Pid})
	return report, err
}

// processesOf finds the processes that run the executable, wherever they are in the process tree.
func processesOf(executable string) ([]int, error) { return processesWith("exe", executable) }

// processesWith finds the processes whose link of that name in proc(5), exe or cwd, leads to the path or below it.
func processesWith(name, path string) ([]int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/" + name)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, link := range links {
		// A process that has ended, or that is another user's, is none of ours.
		target, err := os.Readlink(link)
		if err != nil || target != path && !strings.HasPrefix(target, path+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// memoryOf adds up what proc_pid_smaps(5) calls the roll-up of each process.
func memoryOf(pids []int) (memory, error) {
	m := memory{Processes: len(pids)}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return memory{}, fmt.Errorf("read the memory of process %d: %w", pid, err)
		}
		rss, err := kilobytes(string(text), "Rss:")
		if err != nil {
			return memory{}, err
		}
		pss, err := kilobytes(string(text), "Pss:")
		if err != nil {
			return memory{}, err
		}
		m.RSS, m.PSS = m.RSS+rss<<10, m.PSS+pss<<10
	}
	return m, nil
}

func kilobytes(text, key string) (int64, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == key && fields[2] == "kB" {
			return strconv.ParseInt(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("smaps_rollup has no line %q", key)
}

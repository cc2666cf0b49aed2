package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// rest is how long a server is left alone before its memory is read, for each of -seconds.
const rest = 2 * time.Second

// measureMemory reads the memory of both servers after one request and a rest. RSS counts shared pages in full, PSS
// by share.
func measureMemory(ctx context.Context, env *environment, o options, table io.Writer) (err error) {
	p, err := env.pair(ctx)
	if err != nil {
		return err
	}
	defer p.stopInto(&err)
	if err := wait(ctx, o.of(rest)); err != nil {
		return err
	}
	ours, err := processesWith("exe", env.binary)
	if err != nil {
		return err
	}
	fmt.Fprintln(table, "idle memory\tprocesses\tRSS\tPSS")
	for _, row := range []struct {
		name string
		pids []int
	}{{"bare server", []int{p.floor.cmd.Process.Pid}}, {"taskapi, keeper included", ours}} {
		var rss, pss int64
		for _, pid := range row.pids {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
			if err != nil {
				return fmt.Errorf("read the memory of process %d: %w", pid, err)
			}
			r, err := kilobytes(string(text), "Rss:")
			p, err2 := kilobytes(string(text), "Pss:")
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			rss, pss = rss+r, pss+p
		}
		inRSS, inPSS := megabytes(float64(rss<<10)), megabytes(float64(pss<<10))
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", row.name, len(row.pids), inRSS, inPSS)
	}
	return nil
}

// processesWith finds the processes whose link of that name in proc(5), exe or cwd, leads to the path or below it.
func processesWith(name, path string) ([]int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/" + name)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || target != path && !strings.HasPrefix(target, path+"/") {
			continue // a process that has ended, or is another user's, is none of ours
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// kilobytes reads a line of proc_pid_smaps(5).
func kilobytes(text, key string) (int64, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == key && fields[2] == "kB" {
			return strconv.ParseInt(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("smaps_rollup has no line %q", key)
}

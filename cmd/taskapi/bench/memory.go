package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"taskapi/internal/proc"
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
	fmt.Fprintln(table, "idle memory\tprocesses\tRSS\tPSS")
	for _, row := range []struct {
		name string
		pids []int
	}{
		{"bare server", []int{p.floor.cmd.Process.Pid}},
		{"taskapi, keeper included", processesWith("exe", env.binary)},
	} {
		rss, pss, err := memoryOf(row.pids)
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", row.name, len(row.pids), megabytes(float64(rss)), megabytes(float64(pss)))
	}
	return nil
}

// restingTasks is how many tasks rest with a taskapi whose memory is compared.
const restingTasks = 3

// memoryOf returns the bytes of memory of these processes together.
func memoryOf(pids []int) (rss, pss uint64, err error) {
	for _, pid := range pids {
		file := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
		rss += proc.Bytes(proc.Value(file, "Rss"))
		pss += proc.Bytes(proc.Value(file, "Pss"))
	}
	if rss == 0 || pss == 0 {
		return 0, 0, fmt.Errorf("the memory of the processes %v can't be read", pids)
	}
	return rss, pss, nil
}

// processesWith finds the processes whose link of that name in proc(5), exe or cwd, leads to the path or below it.
func processesWith(name, path string) []int {
	pids, _ := proc.PIDs() // fails only without /proc
	return slices.DeleteFunc(pids, func(pid int) bool {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, name))
		return err != nil || target != path && !strings.HasPrefix(target, path+"/") // another user's can't be read
	})
}

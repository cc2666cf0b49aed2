package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// rest is how long the servers are left alone before their memory is read, for each of -seconds: longer than taskapi
// takes until it gives back what the start took, and until the allocation is healthy. -seconds 4 makes it a minute.
const rest = 15 * time.Second

// restingTasks is how many tasks rest with taskapi.
const restingTasks = 3

func (env *environment) memory(ctx context.Context, o options) (_ []sample, err error) {
	s, err := env.running(ctx, sleepers(restingTasks))
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	return atRest(ctx, o, processesWith("exe", env.binary)...) // taskapi and its keeper
}

func (env *environment) floorMemory(ctx context.Context, o options) (_ []sample, err error) {
	f, err := env.floor(ctx, emptyReply, get("/", "none"))
	if err != nil {
		return nil, err
	}
	defer f.stopInto(&err)
	return atRest(ctx, o, f.cmd.Process.Pid)
}

// atRest reads the memory of the processes together: their own, and with it their shares of the pages of files, which
// the kernel can take back.
func atRest(ctx context.Context, o options, pids ...int) ([]sample, error) {
	if err := wake.Sleep(ctx, o.of(rest)); err != nil {
		return nil, err
	}
	var own, pss uint64
	for _, pid := range pids {
		file := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
		own += proc.Bytes(proc.Value(file, "Pss_Anon"))
		pss += proc.Bytes(proc.Value(file, "Pss"))
	}
	if own == 0 || pss == 0 {
		return nil, fmt.Errorf("the memory of the processes %v can't be read", pids)
	}
	return []sample{{"idle, its own", megabytes, float64(own)}, {"idle, PSS", megabytes, float64(pss)}}, nil
}

// processesWith finds the processes whose link of that name in proc(5), exe or cwd, leads to the path or below it.
func processesWith(name, path string) []int {
	pids, _ := proc.PIDs() // fails only without /proc
	return slices.DeleteFunc(pids, func(pid int) bool {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, name))
		return err != nil || target != path && !strings.HasPrefix(target, path+"/") // another user's can't be read
	})
}

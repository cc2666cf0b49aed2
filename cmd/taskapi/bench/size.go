package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

// The numbers of tasks in one group that memory is measured with: few, for what a keeper costs, and many, for what grows.
var (
	fewTasks  = []int{1, 3, 50}
	manyTasks = []int{10, 100, 500}
)

// A sizeRow is the memory of taskapi's two processes with so many tasks. Sizes are in bytes of PSS; Each is what every task beyond
// those of the first row adds, and empty in that row.
type sizeRow struct {
	Tasks  int
	Agent  part
	Keeper part
}

// A part is one process.
type part struct {
	PSS   figure
	Each  figure
	Files int // descriptors, which RLIMIT_NOFILE must leave room for
}

// A household is the agent and the keeper at one time.
type household [2]struct {
	pss   float64
	files int
}

// sizes are numbers of tasks.
type sizes []int

// measure reads the memory with each number of tasks in turn, in every round.
func (all sizes) measure(ctx context.Context, env *environment, o options) (rows []sizeRow, err error) {
	all = o.upTo(all)
	rounds := make([][]household, len(all)) // by size
	for range o.rounds {
		for i, tasks := range all {
			h, err := measureHousehold(ctx, env, o, tasks)
			if err != nil {
				return nil, fmt.Errorf("%d tasks: %w", tasks, err)
			}
			rounds[i] = append(rounds[i], h)
		}
	}
	for i, tasks := range all {
		row := sizeRow{Tasks: tasks}
		for process, p := range []*part{&row.Agent, &row.Keeper} {
			pss := func(h household) float64 { return h[process].pss }
			p.PSS, p.Files = figureOf(collect(rounds[i], pss)), rounds[i][o.rounds-1][process].files
			if further := float64(tasks - all[0]); further > 0 {
				p.Each = growth(rounds[0], rounds[i], further, pss)
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// growth compares rounds that were measured in turn.
func growth(from, to []household, tasks float64, of func(household) float64) figure {
	each := make([]float64, len(from))
	for i := range from {
		each[i] = (of(to[i]) - of(from[i])) / tasks
	}
	return figureOf(each)
}

// measureHousehold starts a group of sleeping tasks and looks at taskapi when it has come to rest.
func measureHousehold(ctx context.Context, env *environment, o options, tasks int) (h household, err error) {
	s, err := env.group(ctx, sleepers(tasks), tasks)
	if err != nil {
		return h, err
	}
	defer s.stopInto(&err)
	if err := o.rest(ctx); err != nil {
		return h, err
	}
	keeper, err := s.keeper(env)
	if err != nil {
		return h, err
	}
	for process, pid := range []int{s.cmd.Process.Pid, keeper} {
		if h[process].pss, h[process].files, err = sizeOf(pid); err != nil {
			return h, err
		}
	}
	return h, nil
}

func sizeOf(pid int) (pss float64, files int, err error) {
	m, err := memoryOf([]int{pid})
	if err != nil {
		return 0, 0, err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return float64(m.PSS), len(open), err
}

func printSizes(w io.Writer, title string, rows []sizeRow) {
	fmt.Fprintf(w, "%s\tagent PSS (spread)\teach further task\tfiles\tkeeper PSS (spread)\teach further task\tfiles\n", title)
	for _, row := range rows {
		fmt.Fprintf(w, "%d task(s)", row.Tasks)
		for _, p := range []part{row.Agent, row.Keeper} {
			each := "-"
			if p.Each != (figure{}) {
				each = p.Each.in("KB", 1e3, 0)
			}
			fmt.Fprintf(w, "\t%s\t%s\t%d", p.PSS.in("MB", 1e6, 1), each, p.Files)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

package look

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
)

// statsShow is taskapi stats.
type statsShow struct {
	target      base.Target
	environment base.Environment
	out         base.OutputFlags
	again       bool // each interval
	interval    time.Duration
}

const (
	// leastInterval is what samples are apart at least.
	leastInterval = 500 * time.Millisecond
	// defaultInterval is Nomad's.
	defaultInterval = time.Second
	// away is how long a taskapi may be gone while figures are followed: another one takes over, or resumes the
	// allocation.
	away = 10 * time.Second
)

func Stats(w base.Environment) *cobra.Command {
	s := &statsShow{environment: w}
	cmd := base.OnTarget(w, base.ToReadTasks, &cobra.Command{
		Use:   "stats [flags] [ALLOC] [TASK]",
		Short: "Show the CPU and memory that an allocation's tasks use",
		Long: `Shows the CPU and the memory that each task of an allocation uses. CPU is in percent of one core, measured
since the last request if that is less than half a minute ago, or else for a fifth of a second. Memory has the names
of Nomad's API, as far as this machine measures it. With --follow, the figures are shown again each --interval until
the allocation ends.
` + base.TaskArgs + `

--json prints what GET /v1/client/allocation/:id/stats answers, with --follow a line each time; --template is given
the same, as the SDK's AllocResourceUsage. 'taskapi ps' shows the processes.`,
		Example: `  taskapi stats
  taskapi stats -f --interval 5s hello
  taskapi stats -t '{{range $task, $u := .Tasks}}{{$task}} {{$u.ResourceUsage.MemoryStats.RSS}}{{"\n"}}{{end}}'`,
	}, func(ctx context.Context, found base.Target) error {
		s.target = found
		if s.again {
			return s.follow(ctx)
		}
		usage, err := statsOf(ctx, found)
		if err != nil {
			return err
		}
		return s.out.Print(w, usage, nil, func() error { return s.people(usage) })
	})
	base.AddOutput(cmd, &s.out)
	f := cmd.Flags()
	f.BoolVarP(&s.again, "follow", "f", false, "show it again each interval, until the allocation ends or Ctrl-C")
	f.DurationVar(&s.interval, "interval", defaultInterval, "with --follow, the time between, at least 500ms")
	parse := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if s.interval < leastInterval {
			return base.Usagef("--interval is %v: give at least %v", s.interval, leastInterval)
		}
		if cmd.Flags().Changed("interval") && !s.again {
			return base.Usagef("--interval goes with --follow")
		}
		return parse(cmd, args)
	}
	return cmd
}

// statsOf returns what the allocation's tasks use, or the one task that is named.
func statsOf(ctx context.Context, t base.Target) (usage *api.AllocResourceUsage, err error) {
	options := &api.QueryOptions{}
	if t.Task != "" {
		options.Params = map[string]string{"task": t.Task}
	}
	err = t.Ask(ctx, func(_ *client.Client, sdk *api.Client) error {
		usage, err = sdk.Allocations().Stats(&api.Allocation{ID: t.ID}, options.WithContext(ctx))
		return err
	})
	return usage, err
}

// follow shows it again and again, until the allocation ends, or ctx.
func (s *statsShow) follow(ctx context.Context) error {
	ctx, release := base.UntilSignal(ctx)
	defer release()
	terminal := output.IsTerminal(s.environment.Stdout) && !s.out.ForPrograms()
	shown, answered := false, time.Now()
	timer := time.NewTicker(s.interval)
	defer timer.Stop()
	for {
		usage, err := statsOf(ctx, s.target)
		ended, _ := errors.AsType[*base.EndedError](err)
		switch {
		case ctx.Err() != nil, ended != nil && shown:
			return nil
		case err == nil:
			shown, answered = true, time.Now()
			if err := s.show(usage, terminal); err != nil {
				return err
			}
		case !shown, time.Since(answered) > away:
			return err
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// clearScreen puts the cursor of a terminal into the first place, and empties what follows.
const clearScreen = "\x1b[H\x1b[J"

func (s *statsShow) show(usage *api.AllocResourceUsage, terminal bool) error {
	out := s.environment.Stdout
	if s.out.JSON {
		return json.NewEncoder(out).Encode(usage)
	}
	return s.out.Print(s.environment, usage, nil, func() error {
		head := fmt.Sprintf("%s  allocation %s\n", output.Date(time.Now()), output.ShortID(s.target.ID))
		if terminal {
			head = clearScreen + head
		}
		if _, err := io.WriteString(out, head); err != nil {
			return err
		}
		return s.people(usage)
	})
}

// people writes a table, with those columns of which anything is measured.
func (s *statsShow) people(usage *api.AllocResourceUsage) error {
	if len(usage.Tasks) == 0 {
		return s.environment.Printf("no task of allocation %s has run\n", output.ShortID(s.target.ID))
	}
	return s.environment.Printf("%s", statsTable(usage, s.environment.Colors()))
}

// statsColumn is a column of the table: the name of what must be measured for it, and its text.
type statsColumn struct {
	head, measured string
	text           func(*api.ResourceUsage) string
}

var statsColumns = []statsColumn{
	{"CPU", "Percent", cpuText},
	{"User Mode", "User Mode", func(u *api.ResourceUsage) string { return percent(u.CpuStats.UserMode) }},
	{"System Mode", "System Mode", func(u *api.ResourceUsage) string { return percent(u.CpuStats.SystemMode) }},
	{"Throttled", "Throttled Time", func(u *api.ResourceUsage) string {
		return fmt.Sprintf("%v in %d periods", time.Duration(u.CpuStats.ThrottledTime).Round(time.Millisecond),
			u.CpuStats.ThrottledPeriods)
	}},
	{"RSS", "RSS", func(u *api.ResourceUsage) string { return output.Bytes(u.MemoryStats.RSS) }},
	{"Cache", "Cache", func(u *api.ResourceUsage) string { return output.Bytes(u.MemoryStats.Cache) }},
	{"Swap", "Swap", func(u *api.ResourceUsage) string { return output.Bytes(u.MemoryStats.Swap) }},
	{"Usage", "Usage", func(u *api.ResourceUsage) string { return output.Bytes(u.MemoryStats.Usage) }},
	{"Max Usage", "Max Usage", func(u *api.ResourceUsage) string { return output.Bytes(u.MemoryStats.MaxUsage) }},
	{"Kernel Usage", "Kernel Usage", func(u *api.ResourceUsage) string { return output.Bytes(u.MemoryStats.KernelUsage) }},
}

func percent(n float64) string { return fmt.Sprintf("%.1f %%", n) }

func measures(u *api.ResourceUsage, name string) bool {
	return slices.Contains(u.CpuStats.Measured, name) || slices.Contains(u.MemoryStats.Measured, name)
}

func statsTable(usage *api.AllocResourceUsage, colors output.Colors) string {
	tasks := slices.Sorted(maps.Keys(usage.Tasks))
	columns := slices.DeleteFunc(slices.Clone(statsColumns), func(c statsColumn) bool {
		return !slices.ContainsFunc(tasks, func(name string) bool {
			return measures(usage.Tasks[name].ResourceUsage, c.measured)
		})
	})
	table := output.Table{Colors: colors}
	head := []string{"Task", "Processes"}
	for _, c := range columns {
		head = append(head, c.head)
	}
	table.Header(head...)
	row := func(name, processes string, u *api.ResourceUsage) {
		texts := []string{name, processes}
		for _, c := range columns {
			text := "-"
			if measures(u, c.measured) {
				text = c.text(u)
			}
			texts = append(texts, text)
		}
		table.Row(texts...)
	}
	count := 0
	for _, name := range tasks {
		task := usage.Tasks[name]
		count += len(task.Pids)
		listed := strconv.Itoa(len(task.Pids))
		if len(task.Pids) == allocrunner.MostPIDs {
			listed += " or more"
		}
		row(name, listed, task.ResourceUsage)
	}
	if len(tasks) > 1 && usage.Timestamp != 0 {
		row("total", strconv.Itoa(count), usage.ResourceUsage)
		table.Paint(0, output.Dim)
	}
	return table.String()
}

package look

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/proc"
)

func PS(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	var long bool
	cmd := base.OnTarget(w, base.ToReadTasks, &cobra.Command{
		Use:   "ps [flags] [ALLOC] [TASK]",
		Short: "List the processes of an allocation's tasks",
		Long: `Lists the tasks of an allocation with their state and restarts, and the processes of each: number,
user, CPU in percent of one core, resident memory, time since the start, and command.
` + base.TaskArgs + `

--json prints a list of the tasks with their processes; --template is given the same: .Task .State .Failed .Restarts
.Health .Processes, each with .PID .User .UID .CPUPercent .RSS .Started .Command.`,
		Example: `  taskapi ps
  taskapi ps hello greeter
  taskapi ps -t '{{range .}}{{range .Processes}}{{.PID}}{{"\n"}}{{end}}{{end}}'`,
	}, func(ctx context.Context, found base.Target) error {
		tasks, err := processesOf(ctx, found)
		if err != nil {
			return err
		}
		return out.Table(w, tasks, psTable(tasks, commandWidth(w, long), w.Colors()))
	})
	base.AddOutput(cmd, &out)
	cmd.Flags().BoolVarP(&long, "long", "l", false, "print whole command lines")
	return cmd
}

// psTask is a task with its processes.
type psTask struct {
	Task      string
	State     string
	Failed    bool
	Restarts  uint64
	Health    string // healthy, unhealthy or empty: the allocation's, as far as it is known
	Processes []psProcess
}

// psProcess is a process.
type psProcess struct {
	PID        int
	User       string // its number when it has no name
	UID        uint32
	CPUPercent float64 // of one core
	RSS        uint64  // bytes
	Started    time.Time
	Command    string
}

// processesOf returns the tasks of an allocation with their processes, or the task that is named; of one that does not
// run, without.
func processesOf(ctx context.Context, t base.Target) ([]psTask, error) {
	found, err := t.Locate(ctx)
	if err != nil {
		return nil, err
	}
	usage := &api.AllocResourceUsage{}
	if found.Holder == client.Serving {
		usage, err = statsOf(ctx, t)
		if _, ended := errors.AsType[*base.EndedError](err); ended { // meanwhile
			usage, err = &api.AllocResourceUsage{}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	names := userNames{}
	tasks := []psTask{}
	for _, name := range base.TaskNames(found.Alloc) {
		if t.Task != "" && t.Task != name {
			continue
		}
		task := psTask{Task: name, State: "pending", Processes: []psProcess{}}
		if state := found.Alloc.TaskStates[name]; state != nil {
			task.State, task.Failed, task.Restarts = state.State, state.Failed, state.Restarts
		}
		if health, ok := base.HealthOf(found.Alloc); ok && task.State == "running" {
			task.Health = health
		}
		if u := usage.Tasks[name]; u != nil {
			task.Processes = names.processes(u)
		}
		tasks = append(tasks, task)
	}
	return tasks, nil
}

// userNames are the names of users that have been looked up, by their numbers.
type userNames map[uint32]string

func (n userNames) of(uid uint32) string {
	if name, ok := n[uid]; ok {
		return name
	}
	name := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	n[uid] = name
	return name
}

// processes describes a task's processes, the oldest first. What has ended since it was measured, and what has its
// number now, is left out.
func (n userNames) processes(u *api.TaskResourceUsage) []psProcess {
	all := []psProcess{}
	measured := time.Unix(0, u.Timestamp)
	for number, use := range u.Pids {
		pid, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		d, err := proc.Describe(pid)
		if err != nil || d.Started.After(measured.Add(time.Second)) { // start times are not exact
			continue
		}
		all = append(all, psProcess{PID: pid, User: n.of(d.UID), UID: d.UID, CPUPercent: use.CpuStats.Percent,
			RSS:     use.MemoryStats.RSS,
			Started: d.Started, Command: d.Command})
	}
	slices.SortFunc(all, func(a, b psProcess) int {
		return cmp.Or(a.Started.Round(time.Second).Compare(b.Started.Round(time.Second)), cmp.Compare(a.PID, b.PID))
	})
	return all
}

const (
	// shownCommand is how much of a command a line has, in letters, where there is no terminal.
	shownCommand = 60
	// leastCommand is that on a narrow terminal, and besideCommand what the columns before it mostly take.
	leastCommand, besideCommand = 16, 76
)

// commandWidth returns how many letters of a command fit into a line.
func commandWidth(w base.Environment, long bool) int {
	columns := output.Width(w.Stdout)
	switch {
	case long:
		return math.MaxInt
	case columns > 0:
		return max(leastCommand, columns-besideCommand)
	}
	return shownCommand
}

// psColumns are the columns of the table. The ones of a task are empty beside all but its first process.
var psColumns = []struct {
	head   string
	ofTask bool
	text   func(psTask, psProcess) string
}{
	{"Task", true, func(t psTask, _ psProcess) string { return t.Task }},
	{"State", true, func(t psTask, _ psProcess) string { text, _ := t.stateText(); return text }},
	{"Restarts", true, func(t psTask, _ psProcess) string { return strconv.FormatUint(t.Restarts, 10) }},
	{"PID", false, func(_ psTask, p psProcess) string { return strconv.Itoa(p.PID) }},
	{"User", false, func(_ psTask, p psProcess) string { return p.User }},
	{"CPU", false, func(_ psTask, p psProcess) string { return percent(p.CPUPercent) }},
	{"Memory", false, func(_ psTask, p psProcess) string { return output.Bytes(p.RSS) }},
	{"Uptime", false, func(_ psTask, p psProcess) string { return output.Duration(time.Since(p.Started)) }},
	{"Command", false, func(_ psTask, p psProcess) string { return p.Command }},
}

// stateText returns a task's state with the allocation's health, and its colour.
func (t psTask) stateText() (string, output.Color) {
	text, color := stateText(&api.TaskState{State: t.State, Failed: t.Failed})
	if t.Health != "" {
		text += ", " + t.Health
		if t.Health != "healthy" {
			color = output.StatusColor(t.Health)
		}
	}
	return text, color
}

// psTable returns a line for each process, and one for each task without. width is how many letters of a command are
// shown.
func psTable(tasks []psTask, width int, colors output.Colors) *output.Table {
	table := &output.Table{Colors: colors}
	var heads []string
	for _, c := range psColumns {
		heads = append(heads, c.head)
	}
	table.Header(heads...)
	for _, task := range tasks {
		for i := range max(1, len(task.Processes)) {
			var p psProcess
			if i < len(task.Processes) {
				p = task.Processes[i]
				p.Command = base.Clipped(p.Command, width)
			}
			var texts []string
			for _, c := range psColumns {
				switch {
				case c.ofTask && i > 0:
					texts = append(texts, "")
				case !c.ofTask && p.PID == 0:
					texts = append(texts, "-")
				default:
					texts = append(texts, c.text(task, p))
				}
			}
			table.Row(texts...)
			if _, color := task.stateText(); i == 0 {
				table.Paint(1, color)
			}
		}
	}
	return table
}

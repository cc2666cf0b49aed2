package look

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/readiness"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/proc"
)

// followPause is the time from one listing to the next, Nomad's interval of statistics.
const followPause = time.Second

func PS(w base.Environment) *cobra.Command {
	s := psShow{environment: w}
	var at base.TargetFlags
	cmd := &cobra.Command{
		Use:        "ps [flags] [ALLOC] [TASK]",
		SuggestFor: []string{"stats", "processes"},
		Short:      "List the processes of tasks, with their CPU and memory",
		Long: `Lists the tasks of an allocation, or of a job's allocations, and the processes of each. Without ALLOC, it
lists all that run.

CPU is in percent of one core, memory is resident memory, with the pages of programs and libraries: it is more than what
top and status show. Where a task's memory is limited, ps also shows what counts, and the limit. CPU is measured since
the last request if that is less than half a minute ago, or else for a fifth of a second. Of an ended allocation, ps
lists the tasks as they ended.

` + base.AllocNames + ` If a name is both an allocation's and a task's, give ALLOC
and TASK.

--json prints a list of the tasks with their processes, and with --follow a line each time. A template gets the same:
.Alloc .Task .State .Failed .Restarts .Health .Ready .Status .Usage .Limit .Processes, and of each process .PID .User
.UID .CPUPercent .UserMode .SystemMode .RSS .Swap .Started .Command. Usage is the sum over the task's processes, as GET
/v1/client/allocation/:id/stats answers it, and Limit the most memory that they may use.`,
		Example: `  taskapi ps
  taskapi ps -f hello greeter
  taskapi ps -t '{{range .}}{{range .Processes}}{{.PID}}{{"\n"}}{{end}}{{end}}'`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if at.Given(args) {
				s.targets, err = at.FindEach(cmd.Context(), args)
			} else {
				s.targets, err = base.FindAll(cmd.Context(), w, at.DataDir, base.ToReadTasks)
			}
			if err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
	at.Add(cmd, w, base.ToReadTasks)
	base.AddOutput(cmd, &s.out)
	cmd.Flags().BoolVarP(&s.follow, "follow", "f", false, "list them each second, until the allocation ends or Ctrl-C")
	cmd.Flags().BoolVarP(&s.long, "long", "l", false,
		"print whole command lines, and CPU in user mode and in system mode, and swap")
	return cmd
}

type psShow struct {
	targets      []base.Target
	environment  base.Environment
	out          base.OutputFlags
	follow, long bool
	rows         int // of the latest text on a terminal
}

type psTask struct {
	Alloc     string // its ID
	Task      string
	State     string
	Failed    bool
	Restarts  uint64
	Health    string             // healthy, unhealthy or empty: the allocation's, as far as it is known
	Ready     bool               // false for a task that runs and has not said yet that it is ready, as it is going to
	Status    string             // what the task has said about itself
	Usage     *api.ResourceUsage `json:",omitempty"` // of all processes; nil when the task does not run
	Limit     int64              // of memory, in bytes; 0 for none
	Processes []psProcess

	state *api.TaskState // nil before there is one
}

type psProcess struct {
	PID        int
	User       string // its number when it has no name
	UID        uint32
	CPUPercent float64 // of one core, as are the two shares of it
	UserMode   float64
	SystemMode float64
	RSS        uint64 // bytes
	Swap       uint64
	Started    time.Time
	Command    string
}

// run lists the tasks, and with --follow again and again until their allocations have ended, or ctx.
func (s *psShow) run(ctx context.Context) error {
	ctx, release := base.UntilSignal(ctx)
	defer release()
	timer := time.NewTicker(followPause)
	defer timer.Stop()
	for {
		tasks, ended, notes := []psTask{}, true, ""
		var errs []error
		for _, t := range s.targets {
			of, over, note, err := processesOf(ctx, t)
			tasks, ended, notes, errs = append(tasks, of...), ended && over, notes+note, append(errs, err)
		}
		if ctx.Err() != nil {
			return nil
		}
		err := errors.Join(errs...)
		if err == nil || len(tasks) > 0 {
			err = errors.Join(s.print(tasks, notes), err)
		}
		if err != nil || ended || !s.follow {
			return err
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// What a terminal is told: to put the cursor into the first place, to empty what follows it, and to cut long lines or
// not.
const (
	toFirst   = "\x1b[H"
	clearRest = "\x1b[J"
	cutLines  = "\x1b[?7l"
	wrapLines = "\x1b[?7h"
)

// inPlace returns the text for a terminal so that it stands in the place of the text before. What was on the screen
// above stays, unless the text is higher than the screen or has lines to be wrapped.
func (s *psShow) inPlace(text string) string {
	rows, height := strings.Count(text, "\n"), output.Height(s.environment.Stdout)
	again := toFirst + clearRest
	if !s.long && rows < height && s.rows < height {
		text = cutLines + text + wrapLines
		if again = clearRest; s.rows > 0 {
			again = fmt.Sprintf("\r\x1b[%dA", s.rows) + clearRest
		}
	}
	s.rows = rows
	return again + text
}

func (s *psShow) print(tasks []psTask, notes string) error {
	w := s.environment
	if s.out.JSON && s.follow {
		return json.NewEncoder(w.Stdout).Encode(tasks)
	}
	return s.out.Print(w, tasks, nil, func() error {
		text := s.table(tasks).String() + notes
		if s.follow {
			text = output.Date(time.Now()) + "\n" + text
			if output.IsTerminal(w.Stdout) {
				text = s.inPlace(text)
			}
		}
		return w.Printf("%s", text)
	})
}

// processesOf returns the tasks of an allocation with their processes, or the task that is named, and whether the
// allocation has ended. A task that does not run has no processes. note says why none are listed; it is a line, or
// empty.
func processesOf(ctx context.Context, t base.Target) (tasks []psTask, ended bool, note string, err error) {
	found, err := t.Locate(ctx)
	if err != nil {
		return nil, false, "", err
	}
	usage, ended := &api.AllocResourceUsage{}, found.Holder == client.Ended
	if found.Holder == client.Serving {
		err = t.Ask(ctx, func(_ *client.Client, sdk *api.Client) (err error) {
			usage, err = sdk.Allocations().Stats(&api.Allocation{ID: t.ID}, (&api.QueryOptions{}).WithContext(ctx))
			return err
		})
		if _, ended = errors.AsType[*base.EndedError](err); ended { // meanwhile
			usage, err = &api.AllocResourceUsage{}, nil
		}
		if err != nil {
			return nil, false, "", err
		}
	}
	switch {
	case ended:
		note = fmt.Sprintf("allocation %s has ended: it has no processes\n", output.ShortID(t.ID))
	case found.Holder == client.Nobody:
		note = fmt.Sprintf("the taskapi of allocation %s has exited, and its tasks %s: '%s' resumes it\n",
			output.ShortID(t.ID), t.Layout.TasksNow(t.ID), t.Layout.Command("takeover", output.ShortID(t.ID)))
	}
	names, gone := userNames{}, tasksGone(t.Layout, found)
	for _, name := range base.TaskNames(found.Alloc) {
		if t.Task != "" && t.Task != name {
			continue
		}
		task := psTask{Alloc: t.ID, Task: name, State: "pending", Processes: []psProcess{}}
		if state := taskState(found.Alloc, name, gone); state != nil {
			task.State, task.Failed, task.Restarts, task.state = state.State, state.Failed, state.Restarts, state
		}
		if health, ok := base.HealthOf(found.Alloc); ok && task.State == "running" {
			task.Health = health
		}
		task.Ready, task.Status = readiness.Shown(task.state)
		if u := usage.Tasks[name]; u != nil {
			task.Usage, task.Processes = u.ResourceUsage, names.processes(u)
			_, task.Limit = output.Granted(found.Alloc, name)
		}
		tasks = append(tasks, task)
	}
	return tasks, ended, note, nil
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

// processes describes a task's processes, the oldest first. It leaves out a process that has ended since the
// measurement, even if another process has its number now.
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
			UserMode: use.CpuStats.UserMode, SystemMode: use.CpuStats.SystemMode,
			RSS: use.MemoryStats.RSS, Swap: use.MemoryStats.Swap, Started: d.Started, Command: d.Command})
	}
	slices.SortFunc(all, func(a, b psProcess) int {
		return cmp.Or(a.Started.Round(time.Second).Compare(b.Started.Round(time.Second)), cmp.Compare(a.PID, b.PID))
	})
	return all
}

const (
	// shownCommand is how many letters of a command a line shows without a terminal and without --long.
	shownCommand = 60
	// leastCommand is the same on a narrow terminal, and besideCommand the usual width of the columns before it.
	leastCommand, besideCommand = 16, 76
)

func percent(n float64) string { return fmt.Sprintf("%.1f %%", n) }

// table returns a line for each process, and one for each task without. The columns of a task are empty beside all but
// its first process.
func (s *psShow) table(tasks []psTask) *output.Table {
	table := &output.Table{Colors: s.environment.Colors()}
	heads := []string{"Task", "State", "Restarts"}
	if len(s.targets) > 1 {
		heads = append(heads, "Alloc")
	}
	if limited := slices.ContainsFunc(tasks, func(t psTask) bool { return t.Limit > 0 }); limited {
		heads = append(heads, "Used/Limit")
	}
	ofTask := len(heads)
	heads = append(heads, "PID", "User", "CPU", "Memory", "Uptime")
	width := shownCommand
	if columns := output.Width(s.environment.Stdout); columns > 0 {
		width = max(leastCommand, columns-besideCommand)
	}
	if s.long {
		heads, width = append(heads, "User Mode", "System Mode", "Swap"), math.MaxInt
	}
	table.Header(append(heads, "Command")...)
	for _, task := range tasks {
		state, color := stateText(cmp.Or(task.state, &api.TaskState{State: task.State}))
		if task.Health != "" {
			state += ", " + task.Health
			if task.Health != "healthy" {
				color = output.StatusColor(task.Health)
			}
		}
		state += saidText(task.Ready, task.Status)
		row := []string{task.Task, state, strconv.FormatUint(task.Restarts, 10)}
		if len(s.targets) > 1 {
			row = append(row, output.ShortID(task.Alloc))
		}
		if len(row) < ofTask {
			row = append(row, "-")
			if len(task.Processes) > 0 {
				row[ofTask-1] = output.Of(memoryText(task.Usage), task.Limit)
			}
		}
		if len(task.Processes) == 0 {
			table.Row(append(row, slices.Repeat([]string{"-"}, len(heads)+1-ofTask)...)...)
			table.Paint(1, color)
		}
		for _, p := range task.Processes {
			row = append(row, strconv.Itoa(p.PID), p.User, percent(p.CPUPercent), output.Bytes(p.RSS),
				output.Duration(time.Since(p.Started)))
			if s.long {
				row = append(row, percent(p.UserMode), percent(p.SystemMode), output.Bytes(p.Swap))
			}
			table.Row(append(row, base.Clipped(p.Command, width))...)
			table.Paint(1, color)
			row = make([]string, ofTask)
		}
	}
	return table
}

package look

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/readiness"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/settings"
)

// printAllocation prints an allocation for people: its facts, its use of CPU and memory, its tasks, checks and events.
func (s *statusShow) printAllocation(ctx context.Context, t base.Target, found client.Location) error {
	a, gone := found.Alloc, tasksGone(t.Layout, found)
	usage := &api.AllocResourceUsage{}
	checks, refused := api.AllocCheckStatuses{}, map[string][]*api.TaskEvent{}
	if found.Holder == client.Serving { // what is left out when it ends meanwhile, or refuses
		_ = t.Ask(ctx, func(c *client.Client, sdk *api.Client) error {
			refused, _ = c.Refusals(ctx)
			got, err := sdk.Allocations().Stats(a, (&api.QueryOptions{}).WithContext(ctx))
			if err == nil {
				usage = got
			}
			return err
		})
		checks, _ = t.Checks(ctx)
	} else if found.Saved != nil {
		checks = found.Saved.Checks
	}
	var text strings.Builder
	text.WriteString(s.facts(t.Layout, found, usage, gone))
	if interfaces.IsParent(a.Job) {
		text.WriteString(s.children(ctx, t.Layout, a))
	} else {
		text.WriteString("\n" + s.tasks(a, usage, gone))
	}
	if len(checks) > 0 {
		text.WriteString("\n" + checksTable(s.environment, checks).String())
	}
	for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
		text.WriteString("\n" + s.events(name, taskState(a, name, gone), refused[name]))
	}
	if s.verbose {
		record, err := t.Layout.Record(t.ID)
		if err != nil {
			return err
		}
		data, err := settings.ReadData(string(t.Layout.Dir))
		if err != nil {
			return base.Usage(err)
		}
		text.WriteString("\n" + settingsTable(record.Rows(data), s.environment).String())
	}
	return s.environment.Printf("%s", text.String())
}

// mostChildren is how many children of a job are shown, the latest.
const mostChildren = 10

// children returns a table of the job's latest children, empty for none.
func (s *statusShow) children(ctx context.Context, l base.Layout, parent *api.Allocation) string {
	all, _ := l.Children(ctx, parent, true) // those that are known
	if len(all) == 0 {
		return ""
	}
	table := output.Table{Colors: s.environment.Colors()}
	table.Header("Child", "Job", "Status", "Created")
	for _, t := range all[:min(len(all), mostChildren)] {
		table.Row(output.ShortID(t.ID), t.Alloc.JobID, t.Alloc.ClientStatus, output.Date(time.Unix(0, t.Alloc.CreateTime)))
		table.Paint(2, output.StatusColor(t.Alloc.ClientStatus))
	}
	more := ""
	if n := len(all) - mostChildren; n > 0 {
		more = fmt.Sprintf("%d older ones\n", n)
	}
	return "\n" + table.String() + more
}

// facts returns the lines about the allocation as a whole.
func (s *statusShow) facts(l base.Layout, found client.Location, usage *api.AllocResourceUsage, gone bool) string {
	a := found.Alloc
	table := output.Table{Colors: s.environment.Colors()}
	table.Row("ID", a.ID)
	table.Row("Name", a.Name)
	table.Row("Status", statusText(found, gone))
	table.Paint(1, output.StatusColor(a.ClientStatus))
	if gone {
		table.Row("Description", "Its tasks "+l.TasksNow(a.ID))
	} else {
		table.Row("Description", a.ClientDescription)
	}
	if health, ok := base.HealthOf(a); ok {
		table.Row("Health", health+", since "+output.Date(a.DeploymentStatus.Timestamp))
		table.Paint(1, output.StatusColor(health))
	}
	if found.Holder == client.Nobody {
		table.Row("Resume", l.Command("takeover", a.ID))
		table.Row("Stop", l.Command("stop", a.ID))
	}
	table.Row("Created", output.Date(time.Unix(0, a.CreateTime)))
	if a.ClientTerminalStatus() {
		table.Row("Ended", output.Date(time.Unix(0, a.ModifyTime)))
	}
	table.Row("Directory", l.Alloc(a.ID))
	for _, p := range interfaces.AllocatedPorts(a.AllocatedResources) {
		table.Row("Port "+p.Label, fmt.Sprintf("%s:%d", p.HostIP, p.Value))
	}
	for _, name := range base.TaskNames(a) {
		for _, d := range output.Devices(a, name) {
			table.Row("Device "+name, d)
		}
	}
	if usage.ResourceUsage != nil {
		table.Row("CPU", cpuText(usage.ResourceUsage))
		table.Row("Memory", memoryText(usage.ResourceUsage))
	}
	return table.String()
}

// tasks returns a line for each task, in the order of the job.
func (s *statusShow) tasks(a *api.Allocation, usage *api.AllocResourceUsage, gone bool) string {
	table := output.Table{Colors: s.environment.Colors()}
	table.Header("Task", "State", "Restarts", "Uptime", "PIDs", "CPU", "Memory")
	for _, name := range base.TaskNames(a) {
		state := taskState(a, name, gone)
		if state == nil {
			state = &api.TaskState{State: "pending"}
		}
		uptime, pids, cpu, memory := "-", "-", "-", "-"
		if state.State == "running" && !state.StartedAt.IsZero() {
			uptime = output.Duration(time.Since(state.StartedAt))
		}
		if u := usage.Tasks[name]; u != nil && u.ResourceUsage != nil && state.State == "running" {
			megahertz, bytes := output.Granted(a, name)
			pids, cpu = pidsText(u), cpuText(u.ResourceUsage)+ticksText(u.ResourceUsage, megahertz)
			memory = output.Of(memoryText(u.ResourceUsage), bytes)
		}
		text, color := stateText(state)
		text += saidText(readiness.Shown(state))
		table.Row(name, text, strconv.FormatUint(state.Restarts, 10), uptime, pids, cpu, memory)
		table.Paint(1, color)
	}
	return table.String()
}

// stateText returns a task's state, and its colour.
func stateText(state *api.TaskState) (string, output.Color) {
	if state.Failed {
		return output.TaskState(state), output.Red
	}
	return output.TaskState(state), output.StatusColor(output.TaskWord(state))
}

// maxSaid is how many letters of a task's status text a line shows.
const maxSaid = 40

// saidText returns what a task has said about itself, to follow its state.
func saidText(ready bool, status string) string {
	text := ""
	if !ready {
		text = ", not ready"
	}
	if status != "" {
		text += ": " + base.Clipped(status, maxSaid)
	}
	return text
}

// maxPIDs is how many processes of a task a line names.
const maxPIDs = 4

// pidsText names the processes of a task, the oldest numbers first.
func pidsText(u *api.TaskResourceUsage) string {
	names := slices.SortedFunc(maps.Keys(u.Pids), func(a, b string) int { // they are numbers
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	if more := len(names) - maxPIDs; more > 0 {
		names = append(names[:maxPIDs], fmt.Sprintf("and %d more", more))
	}
	return cmp.Or(strings.Join(names, " "), "-")
}

// cpuText returns the use of CPU in percent of one core.
func cpuText(u *api.ResourceUsage) string {
	if u.CpuStats == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", u.CpuStats.Percent)
}

// ticksText returns the use of CPU beside what the task asked for, to follow that in percent; empty if either is
// unknown.
func ticksText(u *api.ResourceUsage, megahertz int64) string {
	if u.CpuStats == nil || megahertz <= 0 || u.CpuStats.TotalTicks < 0 ||
		!slices.Contains(u.CpuStats.Measured, "Percent") {
		return ""
	}
	return fmt.Sprintf(", %.0f/%d MHz", u.CpuStats.TotalTicks, megahertz)
}

// memoryText returns the use of memory: what the kernel counts, or else what is resident.
func memoryText(u *api.ResourceUsage) string {
	if u.MemoryStats == nil {
		return "-"
	}
	if slices.Contains(u.MemoryStats.Measured, "Usage") {
		return output.Bytes(u.MemoryStats.Usage)
	}
	return output.Bytes(u.MemoryStats.RSS)
}

// events returns a task's events and what it was refused, the oldest first.
func (s *statusShow) events(name string, state *api.TaskState, refused []*api.TaskEvent) string {
	colors := s.environment.Colors()
	table := output.Table{Colors: colors, Indent: 2}
	all := slices.Concat(state.Events, refused)
	slices.SortStableFunc(all, func(a, b *api.TaskEvent) int { return cmp.Compare(a.Time, b.Time) })
	for _, e := range all {
		table.Row(output.Date(time.Unix(0, e.Time)), e.Type, e.DisplayMessage)
	}
	text, color := stateText(state)
	return fmt.Sprintf("Task %q: %s, %d %s\n%s", name, colors.Paint(color, text), state.Restarts,
		base.Plural(int(state.Restarts), "restart", "restarts"), table.String())
}

package top

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/readiness"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/slice"
)

type task struct {
	name     string
	place    int // in the job
	main     bool
	state    string
	unready  bool // it runs, and has not said yet that it is ready
	passing  int  // checks
	checks   int
	cpu      float64 // percent of one processor; negative when nothing is known
	memory   uint64  // bytes
	limit    int64   // of the memory; 0 for none
	restarts uint64
	up       time.Duration // of one that runs
	pids     string
	ports    string
	command  string
}

// orders are those that the table of tasks can have.
var orders = []struct {
	name    string
	compare func(a, b task) int
}{
	{"the job", func(a, b task) int { return a.place - b.place }},
	{"CPU", func(a, b task) int { return cmp.Compare(b.cpu, a.cpu) }},
	{"memory", func(a, b task) int { return cmp.Compare(b.memory, a.memory) }},
	{"restarts", func(a, b task) int { return cmp.Compare(b.restarts, a.restarts) }},
	{"name", func(a, b task) int { return strings.Compare(a.name, b.name) }},
}

// tasksOf returns the tasks of an allocation in the order of the job.
func (m *Model) tasksOf(w *watch) []task {
	if w == nil || w.alloc == nil {
		return nil
	}
	passing, checks := map[string]int{}, map[string]int{} // by task
	owners := portOwners(w.alloc)
	for _, c := range w.checks {
		of := checkOwner(w.alloc, owners, c)
		checks[of]++
		if c.Status == passingStatus {
			passing[of]++
		}
	}
	names := taskNames(w.alloc)
	tasks := make([]task, 0, len(names))
	for place, name := range names {
		t := task{name: name, place: place, state: "pending", passing: passing[name], checks: checks[name], cpu: -1,
			ports: w.ports(name, owners)}
		if spec := specOf(w.alloc, name); spec != nil {
			t.main, t.command = spec.Lifecycle == nil, commandOf(spec)
		}
		if s := w.alloc.TaskStates[name]; s != nil {
			t.state, t.restarts = output.TaskState(s), s.Restarts
			ready, _ := readiness.Shown(s)
			t.unready = !ready
		}
		t.upTo(w, m.now)
		if w.usage != nil && w.usage.Tasks[name] != nil && t.up > 0 {
			u := w.usage.Tasks[name]
			t.cpu, t.memory = usageOf(u.ResourceUsage)
			_, t.limit = output.Granted(w.alloc, name)
			t.pids = pidsOf(u)
		}
		tasks = append(tasks, t)
	}
	return tasks
}

// upTo says for how long the task has run.
func (t *task) upTo(w *watch, now time.Time) {
	if s := w.alloc.TaskStates[t.name]; s != nil && s.State == "running" && !s.StartedAt.IsZero() {
		t.up = max(now.Sub(s.StartedAt), 1)
	}
}

// age shows a length of time, without seconds from a minute on: a table of them keeps still.
func age(d time.Duration) string {
	if d >= time.Minute && d < time.Hour {
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return output.Duration(d)
}

func (m *Model) taskColumns(w *watch) []column[task] {
	clean := m.clean()
	return withoutBars(m, []column[task]{
		{head: "TASK", cell: func(t task) cell { return plainCell(clean.Text(t.name)) }},
		{head: "STATE", least: 7, rank: 1, cell: func(t task) cell {
			words, mark := stateMark(t.state)
			if t.unready {
				words, mark = "not ready", warnStyle
			}
			return cell{clean.Text(words), mark}
		}},
		{head: "CPU", least: 6, right: true, rank: 2, cell: func(t task) cell { return plainCell(percent(t.cpu)) }},
		{head: barsHead, least: barsWidth, rank: 9, cell: func(t task) cell {
			return cell{m.cpuBars(w, t.name, barsWidth), cpuStyle}
		}},
		{head: "MEMORY", least: 8, right: true, rank: 3, cell: func(t task) cell {
			return plainCell(bytesUsed(t.cpu, t.memory) + m.ofLimit(t.memory, t.limit))
		}},
		{head: barsHead, least: barsWidth, rank: 10, cell: func(t task) cell {
			return cell{m.memoryBars(w, t.name, barsWidth), memoryStyle}
		}},
		{head: "RESTARTS", right: true, rank: 6, cell: func(t task) cell { return plainCell(fmt.Sprint(t.restarts)) }},
		{head: "CHECKS", right: true, rank: 5, cell: func(t task) cell { return checksCell(t.passing, t.checks) }},
		{head: "UPTIME", right: true, rank: 4, cell: func(t task) cell {
			if t.up == 0 {
				return plainCell("-")
			}
			return plainCell(age(t.up))
		}},
		{head: "PID", right: true, rank: 7, cell: func(t task) cell { return plainCell(cmp.Or(t.pids, "-")) }},
		{head: "PORTS", rank: 8, cell: func(t task) cell { return plainCell(cmp.Or(clean.Text(t.ports), "-")) }},
		{head: "COMMAND", cell: func(t task) cell { return cell{clean.Text(t.command), faintStyle} }},
	})
}

// groupOf returns the allocation's group, an empty one if the job has it no more.
func groupOf(alloc *api.Allocation) *api.TaskGroup {
	return cmp.Or(alloc.GetTaskGroup(), new(api.TaskGroup))
}

// taskNames returns the names of the tasks as the job has them, and then those that it has no more.
func taskNames(alloc *api.Allocation) []string {
	names := slice.Map(groupOf(alloc).Tasks, func(t *api.Task) string { return t.Name })
	for _, name := range slices.Sorted(maps.Keys(alloc.TaskStates)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// specOf returns a task as the job has it, nil if it does not.
func specOf(alloc *api.Allocation, name string) *api.Task {
	for _, t := range groupOf(alloc).Tasks {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// portOwners returns the tasks beside which the group's ports are shown, by label: the task that the port's service
// names, or the only one whose environment or driver configuration uses the port, or onlyMain.
func portOwners(alloc *api.Allocation) map[string]string {
	group := groupOf(alloc)
	owners, users := map[string]string{}, map[string][]string{} // users by label, or by the name in the environment
	for _, t := range group.Tasks {
		used := portVariable.FindAllStringSubmatch(fmt.Sprint(t.Env, t.Config), -1)
		if labels, ok := t.Config["ports"].([]any); ok {
			for _, label := range labels {
				used = append(used, []string{"", envName(fmt.Sprint(label))})
			}
		}
		for _, match := range used {
			if port := match[1]; !slices.Contains(users[port], t.Name) {
				users[port] = append(users[port], t.Name)
			}
		}
	}
	for _, n := range group.Networks {
		for _, p := range slices.Concat(n.DynamicPorts, n.ReservedPorts) {
			owners[p.Label] = onlyMain(alloc)
			if by := users[envName(p.Label)]; len(by) == 1 {
				owners[p.Label] = by[0]
			}
		}
	}
	for _, s := range group.Services {
		if s.TaskName != "" {
			owners[s.PortLabel] = s.TaskName
		}
	}
	for _, t := range group.Tasks {
		for _, s := range t.Services {
			owners[s.PortLabel] = t.Name
		}
	}
	delete(owners, "") // of services without a port
	return owners
}

// portVariable matches a task's variables about a port. Its only group is the label.
var portVariable = regexp.MustCompile(`NOMAD_(?:HOST_)?(?:ADDR|IP|PORT)_(\w+)`)

// envName returns the label of a port as it stands in the names of variables.
func envName(label string) string { return notInEnv.ReplaceAllString(label, "_") }

var notInEnv = regexp.MustCompile(`\W`)

// checkOwner returns the task beside which a check is shown: its own, or that of its service's port, or onlyMain.
func checkOwner(alloc *api.Allocation, owners map[string]string, c api.AllocCheckStatus) string {
	of := c.Task
	for _, s := range groupOf(alloc).Services {
		if s.Name == c.Service {
			of = cmp.Or(of, s.TaskName, owners[s.PortLabel])
		}
	}
	return cmp.Or(of, onlyMain(alloc))
}

// onlyMain returns the main task of a group that has only one: what belongs to the group, its ports and checks, is
// shown beside that task. It is empty for other groups.
func onlyMain(alloc *api.Allocation) string {
	only := ""
	for _, t := range groupOf(alloc).Tasks {
		if t.Lifecycle == nil && only != "" {
			return ""
		}
		if t.Lifecycle == nil {
			only = t.Name
		}
	}
	return only
}

func commandOf(t *api.Task) string {
	words := []string{}
	if command, ok := t.Config["command"].(string); ok {
		words = append(words, command)
	}
	switch args := t.Config["args"].(type) {
	case []string:
		words = append(words, args...)
	case []any:
		words = append(words, slice.Map(args, func(a any) string { return fmt.Sprint(a) })...)
	}
	return strings.Join(words, " ")
}

// pidsOf names the first process of a task, and how many more there are.
func pidsOf(u *api.TaskResourceUsage) string {
	if len(u.Pids) == 0 {
		return ""
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(u.Pids)), func(a, b string) int { // they are numbers
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	if more := len(u.Pids) - 1; more > 0 {
		return fmt.Sprintf("%s +%d", first, more)
	}
	return first
}

// usageOf returns the processor time in percent of one processor, and the memory in bytes.
func usageOf(u *api.ResourceUsage) (cpu float64, memory uint64) {
	cpu = -1
	if u == nil {
		return cpu, 0
	}
	if u.CpuStats != nil {
		cpu = max(u.CpuStats.Percent, 0)
	}
	if s := u.MemoryStats; s != nil {
		memory = cmp.Or(s.RSS, s.Usage)
	}
	return cpu, memory
}

// percent shows a share of one processor in at most five characters.
func percent(share float64) string {
	switch {
	case share < 0:
		return "-"
	case share < 99.95:
		return fmt.Sprintf("%.1f%%", share)
	}
	return fmt.Sprintf("%.0f%%", min(share, 999999))
}

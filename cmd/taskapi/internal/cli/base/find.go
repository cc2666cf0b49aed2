package base

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/slice"
)

// Target is the allocation and the task that a command's arguments name.
type Target struct {
	Layout Layout
	ID     string
	Task   string          // empty when none is named
	Alloc  *api.Allocation // as last saved; nil if it can't be read
}

// Client returns a client of the taskapi that runs the allocation.
func (t Target) Client() *client.Client { return t.Layout.Client(t.ID) }

// taskScope says what a command does with tasks.
type taskScope int

const (
	NoTask    taskScope = iota // [ALLOC]
	AnyTasks                   // [ALLOC] [TASK]: all tasks when none is named
	OneTask                    // [ALLOC] [TASK]: a task, that may be left out where there is one
	SomeTasks                  // [ALLOC] [TASK...]: all tasks when none is named
)

// Sought says what the arguments of a command may name. The zero value is for commands that change a running
// allocation.
type Sought struct {
	Tasks taskScope
	Whole bool // a name alone means an allocation, and not a task
	Live  bool // without arguments, only a running allocation is meant
	Reads bool // the command changes nothing: it also finds ended allocations, and the latest of several
	exact bool // a name must not be another allocation's, whether that runs or has ended
}

// What the commands look for.
var (
	ToRead        = Sought{Reads: true}
	ToChange      = Sought{}
	ToEnd         = Sought{Tasks: SomeTasks, Whole: true}
	ToChangeTasks = Sought{Tasks: SomeTasks}
	ToRemove      = Sought{exact: true}
	ToReadTasks   = Sought{Tasks: AnyTasks, Reads: true}
	ToFollow      = Sought{Reads: true, Live: true}
)

// Help texts about a command's arguments: how ALLOC is named, what it is when it is left out, and [ALLOC] [TASK].
const (
	AllocNames = `ALLOC is an allocation's name (JOB.GROUP[N], or JOB.GROUP for number 0), its job's name, its ID, or the
beginning of the ID. The name of one of its tasks will do, too.`
	AllocArgs = AllocNames + ` Without ALLOC, the only running allocation is meant.`
	TaskArgs  = AllocArgs + ` If a name is both an allocation's and a task's, give ALLOC and TASK.`
)

// Find returns the allocation and the task that args name: [ALLOC] [TASK], either of them, or neither. dataDir is the
// flag's value; without one, the data directories of this user and of root are looked at. An ambiguous name is a usage
// error, which lists the candidates.
func Find(ctx context.Context, w Environment, dataDir string, args []string, s Sought) (Target, error) {
	f, err := NewFinder(w, dataDir)
	if err != nil {
		return Target{}, err
	}
	return f.Find(ctx, args, s)
}

// FindAll returns every running allocation or, if none runs, what Find returns without args.
func FindAll(ctx context.Context, w Environment, dataDir string, s Sought) (all []Target, err error) {
	f, err := Look(ctx, w, dataDir)
	if err != nil {
		return nil, err
	}
	if all = f.Running(); len(all) == 0 {
		t, err := f.only(s)
		return []Target{t}, err
	}
	return all, nil
}

// Running returns the allocations that have not ended.
func (f *Finder) Running() (all []Target) {
	for _, k := range f.Known {
		if k.Running {
			all = append(all, k.Target)
		}
	}
	return all
}

func (f *Finder) Find(ctx context.Context, args []string, s Sought) (Target, error) {
	if s.Tasks == NoTask && len(args) > 1 || len(args) > 2 {
		return Target{}, Usagef("unexpected argument %q", args[len(args)-1])
	}
	if i := slices.Index(args, ""); i >= 0 {
		return Target{}, Usagef("%s is empty: give a name, or leave it out", []string{"ALLOC", "TASK"}[i])
	}
	if err := f.Look(ctx, args); err != nil {
		return Target{}, err
	}
	if len(args) == 0 {
		return f.only(s)
	}
	matches, err := f.matching(args[0], s)
	if err != nil {
		return Target{}, err
	}
	if len(args) < 2 {
		return f.one(matches, args[0], s)
	}
	if slices.ContainsFunc(matches, func(m match) bool { return m.itself }) {
		matches = slices.DeleteFunc(matches, func(m match) bool { return !m.itself })
	}
	if len(matches) > 1 {
		return Target{}, errAmbiguous(args[0], matches)
	}
	return f.withTask(matches[0].known, args[1], s)
}

// Finder looks for allocations in data directories.
type Finder struct {
	Places    []Layout
	elsewhere string  // a hint at other allocations that this user may mean; empty or a sentence
	Known     []known // the last one of a list first
}

// known is an allocation in one of the directories.
type known struct {
	Target       // without a task
	Running bool // it has not ended: a taskapi has it, or its tasks may run
}

func (k known) with(task string) Target {
	k.Task = task
	return k.Target
}

// NewFinder finds the data directories: the one that the flag or the environment gives, or otherwise this user's own
// and root's.
func NewFinder(w Environment, dataDir string) (*Finder, error) {
	l, err := NewLayout(dataDir, w)
	if dataDir != "" || w.Getenv(DataDirEnv) != "" {
		return &Finder{Places: []Layout{l}}, err
	}
	f := &Finder{}
	if err == nil {
		f.Places = append(f.Places, l)
	} else if os.Geteuid() == 0 || !readable(systemDataDir) {
		return nil, err
	}
	for _, dir := range []string{systemDataDir, ownDataDir(w)} {
		if dir == "" || !readable(dir) {
			continue
		}
		l, err := NewLayout(dir, w)
		if err == nil && !slices.ContainsFunc(f.Places, func(p Layout) bool { return p.Dir == l.Dir }) {
			f.Places = append(f.Places, l)
		}
	}
	f.elsewhere = elsewhere(w)
	return f, nil
}

// Look finds the data directories, as NewFinder does, and reads their allocations; see the method Look. With an error,
// it returns the allocations that it has found.
func Look(ctx context.Context, w Environment, dataDir string, args ...string) (*Finder, error) {
	f, err := NewFinder(w, dataDir)
	if err != nil {
		return &Finder{}, err
	}
	return f, f.Look(ctx, args)
}

// readable reports whether there are allocations in a data directory that this user may list.
func readable(dir string) bool {
	d, err := os.Open(datadir.Dir(dir).Allocs())
	if err != nil {
		return false
	}
	return d.Close() == nil
}

// elsewhere names the user whose allocations this user may mean but can't use.
func elsewhere(w Environment) string {
	if os.Geteuid() != 0 {
		if d, err := os.Open(datadir.Dir(systemDataDir).Allocs()); errors.Is(err, fs.ErrPermission) {
			return "those of root, in " + systemDataDir + ", can only be used by root: try sudo"
		} else if err == nil {
			_ = d.Close() // nothing was written
		}
		return ""
	}
	name := w.Getenv("SUDO_USER")
	if u, err := user.Lookup(name); name != "" && name != "root" && err == nil &&
		readable(filepath.Join(u.HomeDir, homeDataDir)) {
		return fmt.Sprintf("those of user %s are for that user: try without sudo", name)
	}
	return ""
}

// Look reads the allocations of the directories. For a whole ID it reads only that allocation.
func (f *Finder) Look(ctx context.Context, args []string) error {
	whole := ""
	if len(args) > 0 && datadir.IsID(strings.ToLower(args[0])) {
		whole = strings.ToLower(args[0])
	}
	for _, l := range f.Places {
		ids, err := l.IDs()
		if err != nil {
			return err
		}
		for _, id := range ids {
			if whole == "" || id == whole {
				f.Known = append(f.Known, l.Known(ctx, id))
			}
		}
	}
	slices.SortStableFunc(f.Known, func(a, b known) int { return output.CompareAllocs(b.Alloc, a.Alloc) })
	return ctx.Err()
}

// Running returns the allocations of the same namespace, job and group as like that have not ended, as far as they are
// known.
func (l Layout) Running(ctx context.Context, like *api.Allocation) (all []Target, err error) {
	all, err = l.RunningOf(ctx, like.Namespace, like.JobID)
	return slices.DeleteFunc(all, func(t Target) bool { return t.Alloc.TaskGroup != like.TaskGroup }), err
}

// RunningOf returns the allocations of a job that have not ended, as far as they are known.
func (l Layout) RunningOf(ctx context.Context, namespace, job string) (all []Target, err error) {
	ids, err := l.IDs()
	for _, id := range ids {
		if state.Ended(l.State(id)) { // most have, and this reads only the end of the file
			continue
		}
		k := l.Known(ctx, id)
		if k.Running && k.Alloc != nil && k.Alloc.Namespace == namespace && k.Alloc.JobID == job {
			all = append(all, k.Target)
		}
	}
	return all, err
}

// Known returns an allocation as last saved or, if its state is missing or unreadable, as its taskapi answers it.
func (l Layout) Known(ctx context.Context, id string) known {
	k := known{Target{Layout: l, ID: id}, true}
	if saved, err := l.Peek(id); err == nil && saved != nil && saved.Alloc.ID == id {
		k.Alloc, k.Running = saved.Alloc, !saved.Terminal
		return k
	}
	c := l.Client(id)
	defer c.Close()
	found := c.Locate(ctx, client.Timeouts{})
	k.Alloc = found.Alloc
	switch found.Holder {
	case client.Ended:
		k.Running = false
	case client.Unreadable:
		k.Running = allocrunner.TasksRunning(l.Alloc(id))
	}
	return k
}

// only returns the only running allocation or, for commands that read, if none runs, the latest one.
func (f *Finder) only(s Sought) (Target, error) {
	running := slices.DeleteFunc(slices.Clone(f.Known), func(k known) bool { return !k.Running })
	switch {
	case len(running) == 1:
		return f.withTask(running[0], "", s)
	case len(running) > 1:
		return Target{}, Usagef("%d allocations run: give one of\n%s", len(running), candidates(running))
	case s.Reads && !s.Live && len(f.Known) > 0:
		return f.withTask(f.Known[len(f.Known)-1], "", s)
	}
	return Target{}, fmt.Errorf("no allocation runs in %s; %s", f.Dirs(), f.hint())
}

// match is an allocation that a name may mean, and how.
type match struct {
	known
	task   bool // the name is one of its tasks'
	itself bool // the name is its own, its job's, or the beginning of its ID
	byID   bool // it is the beginning of its ID
}

// named reports whether a name is the allocation's own or its job's.
func (t Target) named(name string) bool {
	return t.Alloc != nil && slices.Contains([]string{t.Alloc.JobID, t.Alloc.Name,
		strings.TrimSuffix(t.Alloc.Name, "[0]")}, name)
}

// matching returns the allocations that a name may mean. A name means an ended allocation only if no running one has
// it.
func (f *Finder) matching(name string, s Sought) ([]match, error) {
	var all []match
	for _, k := range f.Known {
		m := match{known: k, byID: strings.HasPrefix(k.ID, strings.ToLower(name))}
		m.itself = m.byID || k.named(name)
		m.task = slices.Contains(TaskNames(k.Alloc), name)
		if m.itself || m.task {
			all = append(all, m)
		}
	}
	all = withoutChildren(all)
	if len(all) == 0 {
		return nil, fmt.Errorf("no allocation, job or task %q in %s; '%s' lists them; %s", name, f.Dirs(),
			f.Places[0].Command("status"), f.hint())
	}
	if s.exact {
		return all, nil
	}
	if slices.ContainsFunc(all, func(m match) bool { return m.Running || m.byID }) {
		return slices.DeleteFunc(all, func(m match) bool { return !m.Running && !m.byID }), nil
	}
	latest := all[len(all)-1]
	if !s.Reads {
		return nil, &NotRunningError{name, latest.Target}
	}
	if slices.ContainsFunc(all, func(m match) bool { return m.Alloc.JobID != latest.Alloc.JobID }) {
		return all, nil
	}
	return []match{latest}, nil
}

// NotRunningError is a name that only ended allocations have.
type NotRunningError struct {
	name   string
	latest Target
}

func (e *NotRunningError) Error() string {
	short, with := output.ShortID(e.latest.ID), ""
	if interfaces.Sticky(e.latest.Alloc) {
		with = " with its sticky data"
	}
	return fmt.Sprintf("%q does not run: the latest allocation of job %q, %s, has ended (%s); '%s' shows it, and "+
		"'%s JOBFILE' begins a new one%s", e.name, e.latest.Alloc.JobID, short, e.latest.Alloc.ClientStatus,
		e.latest.Layout.Command("status", short), e.latest.Layout.RunCommand(e.latest.Alloc), with)
}

// withoutChildren leaves out the children of a job of the name that have only a task of that name.
func withoutChildren(all []match) []match {
	return slices.DeleteFunc(slices.Clone(all), func(child match) bool {
		return !child.itself && slices.ContainsFunc(all, func(m match) bool {
			return m.itself && m.Alloc != nil && IsChild(child.Alloc, m.Alloc)
		})
	})
}

// one returns the allocation, or the task, that a name means as the only argument.
func (f *Finder) one(matches []match, name string, s Sought) (Target, error) {
	if len(matches) > 1 {
		return Target{}, errAmbiguous(name, matches)
	}
	m := matches[0]
	switch {
	case !m.task, m.itself && s.Whole:
		return f.withTask(m.known, "", s)
	case s.Whole:
		return Target{}, Usagef("%q is a task of allocation %s (job %q): give %[2]s for the whole allocation, or %[2]s "+
			"%[1]s for the task", name, output.ShortID(m.ID), m.Alloc.JobID)
	case s.Tasks == OneTask, s.Tasks != NoTask && (!m.itself || len(TaskNames(m.Alloc)) == 1):
		return m.with(name), nil
	case m.itself && (s.Tasks == NoTask || s.Reads), s.Reads:
		return m.Target, nil
	case s.Tasks == NoTask:
		return Target{}, Usagef("%q is a task of allocation %s (job %q), and this is for a whole allocation: give %[2]s "+
			"for that", name, output.ShortID(m.ID), m.Alloc.JobID)
	}
	return Target{}, Usagef("%q is a job and one of its tasks: give %s for all tasks of the allocation, or %[2]s %[1]s "+
		"for the task", name, output.ShortID(m.ID))
}

// withTask returns an allocation with one of its tasks, or with none where the command needs none. With an error it
// returns the allocation alone.
func (f *Finder) withTask(k known, task string, s Sought) (Target, error) {
	tasks := TaskNames(k.Alloc)
	switch {
	case task != "" && k.Alloc != nil && !slices.Contains(tasks, task):
		return k.Target, errNoTask(k.Target, task)
	case task != "" || s.Tasks != OneTask:
		return k.with(task), nil
	}
	if running := RunningTasks(k.Alloc); len(tasks) > 1 && len(running) == 1 {
		tasks = running
	}
	if len(tasks) == 0 && k.Alloc != nil {
		return k.Target, errNoTask(k.Target, task)
	}
	if len(tasks) != 1 {
		return k.Target, Usagef("allocation %s has %d tasks: give one of %s",
			output.ShortID(k.ID), len(tasks), strings.Join(tasks, ", "))
	}
	return k.with(tasks[0]), nil
}

func errNoTask(t Target, task string) error {
	if t.Alloc.Job != nil && interfaces.IsParent(t.Alloc.Job) {
		return fmt.Errorf("job %q of allocation %s runs no task, but its children do: 'taskapi status %[2]s' lists them",
			t.Alloc.JobID, output.ShortID(t.ID))
	}
	return fmt.Errorf("allocation %s (job %q) has no task %q: give one of %s",
		output.ShortID(t.ID), t.Alloc.JobID, task, strings.Join(TaskNames(t.Alloc), ", "))
}

// Dirs names the directories that were looked at.
func (f *Finder) Dirs() string {
	return strings.Join(slice.Map(f.Places, func(l Layout) string { return string(l.Dir) }), " or ")
}

// hint completes an error about data directories that may be the wrong ones.
func (f *Finder) hint() string {
	return cmp.Or(f.elsewhere, "--data-dir or "+DataDirEnv+" names another data directory")
}

// ambiguousError is a name that several allocations have.
type ambiguousError struct {
	name    string
	matches []match
}

func errAmbiguous(name string, matches []match) error { return Usage(&ambiguousError{name, matches}) }

func (e *ambiguousError) Error() string {
	all := slice.Map(e.matches, func(m match) known { return m.known })
	return fmt.Sprintf("%q may be any of %d allocations: give the name or the ID of one\n%s", e.name, len(all),
		candidates(all))
}

// MaxCandidates is how many allocations an error lists.
const MaxCandidates = 10

// candidates lists allocations to choose from.
func candidates(all []known) string {
	ids := output.ShortIDs(slice.Map(all, func(k known) string { return k.ID }))
	table := output.Table{Indent: 2}
	more := max(len(all)-MaxCandidates, 0)
	for i, k := range slices.Backward(all[more:]) {
		name, status := "?", "unknown"
		if k.Alloc != nil {
			name, status = k.Alloc.Name, k.Alloc.ClientStatus
			if k.Alloc.Namespace != "" && k.Alloc.Namespace != api.DefaultNamespace {
				name += " in namespace " + k.Alloc.Namespace
			}
		}
		table.Row(ids[more+i], name, "tasks "+strings.Join(TaskNames(k.Alloc), ", "), status)
	}
	text := strings.TrimSuffix(table.String(), "\n")
	if more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return text
}

// String names the target in a message.
func (t Target) String() string {
	if t.Task != "" {
		return fmt.Sprintf("task %q of allocation %s", t.Task, output.ShortID(t.ID))
	}
	return "allocation " + output.ShortID(t.ID)
}

// Files returns the allocation's files, also when it has ended.
func (t Target) Files() (interfaces.Files, error) {
	if t.Alloc == nil || t.Alloc.Job == nil {
		return nil, fmt.Errorf("allocation %s: its state can't be read, so its tasks are not known; its files are in %s",
			output.ShortID(t.ID), t.Layout.Alloc(t.ID))
	}
	return t.Layout.Files(t.Alloc), nil
}

// Files returns the files of one of the directory's allocations.
func (l Layout) Files(alloc *api.Allocation) interfaces.Files {
	return allocrunner.Files(l.Alloc(alloc.ID), alloc.GetTaskGroup())
}

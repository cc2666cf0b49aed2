package cli

import (
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
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
)

// target is what a command's arguments name.
type target struct {
	layout layout
	id     string
	task   string          // empty when none is named
	alloc  *api.Allocation // as it was saved last; nil when nothing of it can be read
}

// client returns a client of the taskapi that runs the allocation.
func (t target) client() *client.Client { return t.layout.client(t.id) }

// taskScope says what a command does with tasks.
type taskScope int

const (
	noTask   taskScope = iota // [ALLOC]
	anyTasks                  // [ALLOC] [TASK]: all tasks when none is named
	oneTask                   // [ALLOC] [TASK]: a task, that may be left out where there is one
)

// sought says what the arguments of a command may name. The zero value is for those that change an allocation that runs.
type sought struct {
	tasks taskScope
	reads bool // the command changes nothing: what has ended is found, too, and of several the one that was made last
	exact bool // a name must not be another allocation's, whether that runs or has ended
}

// What the commands look for.
var (
	toRead   = sought{reads: true}
	toChange = sought{}
	toRemove = sought{exact: true}
)

// allocArgs is what a command's help says of its arguments.
const allocArgs = `ALLOC is an allocation's ID or the beginning of one, its name, or the name of its job or of a task. Without it, the only one
that runs.`

// taskArgs is the same for [ALLOC] [TASK].
const taskArgs = allocArgs + ` A single name may be an allocation's or a task's; where it is both, give ALLOC and TASK.`

// find returns what args name: [ALLOC] [TASK], either of them, or neither. dataDir is the flag's value; without one, the data directories of
// this user and of root are looked at. Errors: usage errors for names of several things, with what those are.
func find(ctx context.Context, w Environment, dataDir string, args []string, s sought) (target, error) {
	f, err := newFinder(w, dataDir)
	if err != nil {
		return target{}, err
	}
	return f.find(ctx, args, s)
}

func (f *finder) find(ctx context.Context, args []string, s sought) (target, error) {
	if s.tasks == noTask && len(args) > 1 || len(args) > 2 {
		return target{}, usage(fmt.Errorf("unexpected argument %q", args[len(args)-1]))
	}
	if i := slices.Index(args, ""); i >= 0 {
		return target{}, usage(fmt.Errorf("%s is empty: give a name, or leave it out", []string{"ALLOC", "TASK"}[i]))
	}
	if err := f.look(ctx, args); err != nil {
		return target{}, err
	}
	if len(args) == 0 {
		return f.only(s)
	}
	matches, err := f.matching(args[0], s)
	if err != nil {
		return target{}, err
	}
	if len(args) == 2 {
		return f.taskOf(matches, args[0], args[1], s)
	}
	return f.one(matches, args[0], s)
}

// finder looks for allocations in data directories.
type finder struct {
	places    []layout
	elsewhere string  // what else this user may mean, empty or a sentence
	known     []known // the oldest first
}

// known is an allocation in one of the directories.
type known struct {
	layout  layout
	id      string
	alloc   *api.Allocation // nil when nothing of it can be read
	running bool            // it has not ended: a taskapi has it, or its tasks may run
}

func (k known) target(task string) target { return target{k.layout, k.id, task, k.alloc} }

// newFinder finds the data directories: the one that is given, by the flag or the environment, or this user's own and root's.
func newFinder(w Environment, dataDir string) (*finder, error) {
	l, err := newLayout(dataDir, w)
	if dataDir != "" || w.getenv(dataDirEnv) != "" {
		return &finder{places: []layout{l}}, err
	}
	f := &finder{}
	if err == nil {
		f.places = append(f.places, l)
	} else if os.Geteuid() == 0 || !readable(systemDataDir) {
		return nil, err
	}
	for _, dir := range []string{systemDataDir, ownDataDir(w)} {
		f.add(dir, w)
	}
	f.elsewhere = elsewhere(w)
	return f, nil
}

// add looks at another data directory, too, if there is one that can be used.
func (f *finder) add(dir string, w Environment) {
	if dir == "" || !readable(dir) {
		return
	}
	l, err := newLayout(dir, w)
	if err != nil || slices.ContainsFunc(f.places, func(p layout) bool { return p.Dir == l.Dir }) {
		return
	}
	f.places = append(f.places, l)
}

// readable reports whether there are allocations in a data directory that this user may list.
func readable(dir string) bool {
	d, err := os.Open(datadir.Dir(dir).Allocs())
	if err != nil {
		return false
	}
	return d.Close() == nil
}

// elsewhere says whose allocations this user may mean and can't use.
func elsewhere(w Environment) string {
	if os.Geteuid() != 0 {
		if d, err := os.Open(datadir.Dir(systemDataDir).Allocs()); errors.Is(err, fs.ErrPermission) {
			return "those of root, in " + systemDataDir + ", can only be used by root: try sudo"
		} else if err == nil {
			_ = d.Close() // nothing was written
		}
		return ""
	}
	name := w.getenv("SUDO_USER")
	if u, err := user.Lookup(name); name != "" && name != "root" && err == nil && readable(filepath.Join(u.HomeDir, homeDataDir)) {
		return fmt.Sprintf("those of user %s are for that user: try without sudo", name)
	}
	return ""
}

// look reads what the directories have. A whole ID needs no more than its own allocation.
func (f *finder) look(ctx context.Context, args []string) error {
	whole := ""
	if len(args) > 0 && datadir.IsID(strings.ToLower(args[0])) {
		whole = strings.ToLower(args[0])
	}
	for _, l := range f.places {
		ids, err := l.IDs()
		if err != nil {
			return err
		}
		for _, id := range ids {
			if whole == "" || id == whole {
				f.known = append(f.known, l.known(ctx, id))
			}
		}
	}
	slices.SortStableFunc(f.known, func(a, b known) int { return int(min(max(created(a)-created(b), -1), 1)) })
	return ctx.Err()
}

func created(k known) int64 {
	if k.alloc == nil {
		return 0
	}
	return k.alloc.CreateTime
}

// known returns an allocation as it was saved last or, when that can't be read or nothing is saved of it, as its taskapi answers it.
func (l layout) known(ctx context.Context, id string) known {
	if saved, err := l.Peek(id); err == nil && saved != nil && saved.Alloc.ID == id {
		return known{l, id, saved.Alloc, !saved.Terminal}
	}
	c := l.client(id)
	defer c.Close()
	found := c.Locate(ctx, client.Timeouts{})
	switch found.Holder {
	case client.Serving, client.Nobody:
		return known{l, id, found.Alloc, true}
	case client.Ended:
		return known{l, id, found.Alloc, false}
	case client.Unreadable:
		return known{l, id, nil, allocrunner.TasksRunning(l.Alloc(id))}
	}
	return known{l, id, nil, true}
}

// only returns the only allocation that runs, or to read, where none does, the one that was made last.
func (f *finder) only(s sought) (target, error) {
	running := slices.DeleteFunc(slices.Clone(f.known), func(k known) bool { return !k.running })
	switch {
	case len(running) == 1:
		return f.withTask(running[0], "", s)
	case len(running) > 1:
		return target{}, usage(fmt.Errorf("%d allocations run: give one of\n%s", len(running), candidates(running)))
	case s.reads && len(f.known) > 0:
		return f.withTask(f.known[len(f.known)-1], "", s)
	}
	return target{}, fmt.Errorf("no allocation runs in %s; %s", f.dirs(), f.hint())
}

// match is an allocation that a name may mean, and how.
type match struct {
	known
	task   bool // the name is one of its tasks'
	itself bool // the name is its own, its job's, or the beginning of its ID
	byID   bool // it is the beginning of its ID
}

// matching returns the allocations that a name may mean. By a name, those that have ended are meant only when no other is.
func (f *finder) matching(name string, s sought) ([]match, error) {
	var all []match
	for _, k := range f.known {
		m := match{known: k, byID: strings.HasPrefix(k.id, strings.ToLower(name))}
		m.itself = m.byID || k.alloc != nil && (k.alloc.JobID == name || k.alloc.Name == name)
		m.task = slices.Contains(taskNames(k.alloc), name)
		if m.itself || m.task {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no allocation, job or task %q in %s; '%s' lists them; %s", name, f.dirs(), f.places[0].Command("status"), f.hint())
	}
	if s.exact {
		return all, nil
	}
	if slices.ContainsFunc(all, func(m match) bool { return m.running || m.byID }) {
		return slices.DeleteFunc(all, func(m match) bool { return !m.running && !m.byID }), nil
	}
	latest := all[len(all)-1]
	if !s.reads {
		short := output.ShortID(latest.id)
		return nil, fmt.Errorf("%q does not run: the latest allocation of job %q, %s, has ended (%s); '%s' shows it", name, latest.alloc.JobID,
			short, latest.alloc.ClientStatus, latest.layout.Command("status", short))
	}
	if slices.ContainsFunc(all, func(m match) bool { return m.alloc.JobID != latest.alloc.JobID }) {
		return all, nil
	}
	return []match{latest}, nil
}

// one returns what a name means as the only argument: an allocation, or one of its tasks.
func (f *finder) one(matches []match, name string, s sought) (target, error) {
	if len(matches) > 1 {
		return target{}, errAmbiguous(name, matches)
	}
	m := matches[0]
	switch {
	case !m.task:
		return f.withTask(m.known, "", s)
	case s.tasks == oneTask, !m.itself && s.tasks == anyTasks, s.tasks == anyTasks && len(taskNames(m.alloc)) == 1:
		return m.target(name), nil
	case m.itself && (s.tasks == noTask || s.reads), s.reads:
		return m.target(""), nil
	case s.tasks == noTask:
		return target{}, usage(fmt.Errorf("%q is a task of allocation %s (job %q), and this is for a whole allocation: give %s for that", name,
			output.ShortID(m.id), m.alloc.JobID, output.ShortID(m.id)))
	}
	return target{}, usage(fmt.Errorf("%q is a job and one of its tasks: give %s for all tasks of the allocation, or %s %s for the task", name,
		output.ShortID(m.id), output.ShortID(m.id), name))
}

// taskOf returns a task of the allocation that a name means.
func (f *finder) taskOf(matches []match, name, task string, s sought) (target, error) {
	if slices.ContainsFunc(matches, func(m match) bool { return m.itself }) {
		matches = slices.DeleteFunc(matches, func(m match) bool { return !m.itself })
	}
	if len(matches) > 1 {
		return target{}, errAmbiguous(name, matches)
	}
	return f.withTask(matches[0].known, task, s)
}

// withTask returns an allocation with one of its tasks, or with none where the command needs none. With an error it
// returns the allocation alone.
func (f *finder) withTask(k known, task string, s sought) (target, error) {
	tasks := taskNames(k.alloc)
	switch {
	case task != "" && k.alloc != nil && !slices.Contains(tasks, task):
		return k.target(""), usage(fmt.Errorf("allocation %s (job %q) has no task %q: give one of %s",
			output.ShortID(k.id), k.alloc.JobID, task, strings.Join(tasks, ", ")))
	case task != "" || s.tasks != oneTask:
		return k.target(task), nil
	}
	if running := runningTasks(k.alloc); len(tasks) > 1 && len(running) == 1 {
		tasks = running
	}
	if len(tasks) != 1 {
		return k.target(""), usage(fmt.Errorf("allocation %s has %d tasks: give one of %s",
			output.ShortID(k.id), len(tasks), strings.Join(tasks, ", ")))
	}
	return k.target(tasks[0]), nil
}

// taskNames returns the names of an allocation's tasks in the order of the job.
func taskNames(alloc *api.Allocation) []string {
	if alloc == nil || alloc.Job == nil {
		return nil
	}
	var names []string
	for _, t := range alloc.GetTaskGroup().Tasks {
		names = append(names, t.Name)
	}
	return names
}

// runningTasks returns those of its tasks that ran when it was saved last.
func runningTasks(alloc *api.Allocation) []string {
	return slices.DeleteFunc(taskNames(alloc), func(task string) bool {
		state := alloc.TaskStates[task]
		return state == nil || state.State != "running"
	})
}

// dirs names the directories that were looked at.
func (f *finder) dirs() string {
	var dirs []string
	for _, l := range f.places {
		dirs = append(dirs, string(l.Dir))
	}
	return strings.Join(dirs, " or ")
}

// hint completes an error about data directories that may be the wrong ones.
func (f *finder) hint() string {
	if f.elsewhere != "" {
		return f.elsewhere
	}
	return otherDataDir
}

// otherDataDir completes an error about a data directory that may be the wrong one.
const otherDataDir = "--data-dir or " + dataDirEnv + " names another data directory"

func errAmbiguous(name string, matches []match) error {
	var all []known
	for _, m := range matches {
		all = append(all, m.known)
	}
	return usage(fmt.Errorf("%q may be any of %d allocations: give the ID of one\n%s", name, len(all), candidates(all)))
}

// maxCandidates is how many allocations an error lists.
const maxCandidates = 10

// candidates lists allocations to choose from, the newest first.
func candidates(all []known) string {
	all = slices.Clone(all)
	slices.Reverse(all)
	var ids []string
	for _, k := range all {
		ids = append(ids, k.id)
	}
	ids = output.ShortIDs(ids)
	table := output.Table{Indent: 2}
	for i, k := range all[:min(len(all), maxCandidates)] {
		job, status := "?", "unknown"
		if k.alloc != nil {
			job, status = k.alloc.JobID, k.alloc.ClientStatus
		}
		table.Row(ids[i], "job "+job, "tasks "+strings.Join(taskNames(k.alloc), ", "), status)
	}
	text := strings.TrimSuffix(table.String(), "\n")
	if more := len(all) - maxCandidates; more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return text
}

// addDataDir adds the flag of commands that need the data directory alone.
func addDataDir(cmd *cobra.Command, dataDir *string) {
	cmd.Flags().StringVar(dataDir, "data-dir", "", dataDirUsage)
}

// targetArgs accepts what find does.
func targetArgs(s sought) cobra.PositionalArgs {
	names := []string{"ALLOC", "TASK"}
	if s.tasks == noTask {
		names = names[:1]
	}
	return func(_ *cobra.Command, args []string) error {
		switch i := slices.Index(args, ""); {
		case len(args) > len(names):
			return usage(fmt.Errorf("want one %s, not %d: unexpected %q", strings.Join(names, " and one "), len(args), args[len(names)]))
		case i >= 0:
			return usage(fmt.Errorf("%s is empty: give a name, or leave it out", names[i]))
		}
		return nil
	}
}

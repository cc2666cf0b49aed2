package lifecycle

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/slice"
)

// jobChanges is what another version of a job means for an allocation, as JSON has it.
type jobChanges struct {
	Alloc    string      `json:"alloc"`
	Changes  []jobChange `json:"changes"`
	Restarts []string    `json:"restarts"` // the tasks to restart; none if the allocation is to be replaced
	Replaces bool        `json:"replaces"`
}

type jobChange struct {
	Path   string        `json:"path"`
	Text   string        `json:"text"`
	Effect string        `json:"effect"` // one of the effects below
	Task   string        `json:"task,omitempty"`
	Values []valueChange `json:"values,omitempty"`
}

// The effects of a change.
const (
	effectInPlace  = "in place"
	effectRestart  = "restart" // of Task
	effectReplaces = "replace"
)

// valueChange is a key of a config or env block with its values; one that is not there is null.
type valueChange struct {
	Key string `json:"key"`
	Old any    `json:"old"`
	New any    `json:"new"`
}

// annotationDestructive is Nomad's word for a change that needs new processes.
const annotationDestructive = "forces create/destroy update"

// changesOf reads a plan for another version of an allocation's job.
func (u *updater) changesOf(plan *api.JobPlanResponse, before *api.Allocation, job *api.Job) *jobChanges {
	c := &jobChanges{Alloc: u.ID, Changes: []jobChange{}, Restarts: []string{}}
	if plan.Diff == nil {
		return c
	}
	values := blockValues(before, job, u.fromFiles)
	for _, field := range plan.Diff.Fields {
		change := jobChange{Path: field.Name, Text: field.New, Effect: effectInPlace, Values: values[field.Name]}
		if slices.Contains(field.Annotations, annotationDestructive) {
			change.Effect = effectReplaces
		}
		for _, annotation := range field.Annotations {
			if task, ok := strings.CutPrefix(annotation, jobdiff.RestartAnnotation); ok {
				change.Task, _ = strconv.Unquote(task)
				change.Effect = effectRestart
			}
		}
		c.Replaces = c.Replaces || change.Effect == effectReplaces
		if change.Task != "" && !slices.Contains(c.Restarts, change.Task) {
			c.Restarts = append(c.Restarts, change.Task)
		}
		c.Changes = append(c.Changes, change)
	}
	if c.Replaces {
		c.Restarts = []string{}
	}
	return c
}

// table returns a line for each change, and one for each value.
func (c *jobChanges) table() string {
	var table output.Table
	for _, change := range c.Changes {
		effect := map[string]string{effectInPlace: "in place", effectReplaces: "needs new processes"}[change.Effect]
		if change.Effect == effectRestart {
			effect = "restarts " + strconv.Quote(change.Task)
		}
		table.Row(effect, change.Path+": "+change.Text)
		for _, v := range change.Values {
			table.Row("", fmt.Sprintf("  %s: %s -> %s", v.Key, shownValue(v.Old), shownValue(v.New)))
		}
	}
	return table.String()
}

// needs says what the changes would restart, in a line or none.
func (c *jobChanges) needs() string {
	var why []string
	for _, change := range c.Changes {
		if change.Effect == effectReplaces {
			why = append(why, change.Path)
		}
	}
	switch {
	case c.Replaces:
		return fmt.Sprintf("every task would be restarted, by --restart or --replace, because of %s\n",
			strings.Join(why, ", "))
	case len(c.Restarts) > 0:
		return fmt.Sprintf("--restart would restart %s, and no other task\n", quoted(c.Restarts))
	}
	return ""
}

func quoted(tasks []string) string {
	return base.Plural(len(tasks), "task ", "tasks ") + strings.Join(slice.Map(tasks, strconv.Quote), ", ")
}

// shownValue returns a value of a job file in a line.
func shownValue(v any) string {
	if v == nil {
		return "none"
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "(not shown)"
	}
	return base.Clipped(linewriter.OneLine(strings.TrimSpace(b.String())), base.MaxLastLine)
}

// blockValues returns what differs in the config and env blocks of the tasks, by the paths of changes. A value with a
// text from a file, which may be a secret, is not shown, nor is the one before it.
func blockValues(before *api.Allocation, job *api.Job, fromFiles *jobspec.FromFiles) map[string][]valueChange {
	all := map[string][]valueChange{}
	old, now := before.GetTaskGroup(), job.LookupTaskGroup(before.TaskGroup)
	if old == nil || now == nil {
		return all
	}
	for _, was := range old.Tasks {
		is := taskOf(now, was.Name)
		if is == nil {
			continue
		}
		path := fmt.Sprintf("group %q > task %q > ", before.TaskGroup, was.Name)
		all[path+"config"] = keyChanges(was.Config, is.Config)
		all[path+"env"] = keyChanges(anyMap(was.Env), anyMap(is.Env))
		for _, block := range []string{"config", "env"} {
			for i, v := range all[path+block] {
				if is := shownValue(v.New); fromFiles.Mask(is) != is {
					all[path+block][i] = valueChange{v.Key, "(not shown)", "(from a file)"}
				}
			}
		}
	}
	return all
}

func anyMap(m map[string]string) map[string]any {
	all := map[string]any{}
	for key, value := range m {
		all[key] = value
	}
	return all
}

func keyChanges(old, now map[string]any) (changes []valueChange) {
	both := maps.Clone(old)
	if both == nil {
		both = map[string]any{}
	}
	maps.Copy(both, now)
	for _, key := range slices.Sorted(maps.Keys(both)) {
		if shownValue(old[key]) != shownValue(now[key]) {
			changes = append(changes, valueChange{key, old[key], now[key]})
		}
	}
	return changes
}

func taskOf(group *api.TaskGroup, name string) *api.Task {
	for _, t := range group.Tasks {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// withTask returns the allocation's job with one task from another version.
func withTask(before *api.Allocation, job *api.Job, name string) (*api.Job, error) {
	is, now := before.GetTaskGroup(), job.LookupTaskGroup(before.TaskGroup)
	if now == nil || taskOf(now, name) == nil {
		return nil, base.Usagef("--only %q: the job file's group has no such task", name)
	}
	if taskOf(is, name) == nil {
		return nil, base.Usagef("--only %q: the allocation has no such task; leave --only out to add it", name)
	}
	merged, group := *before.Job, *is
	group.Tasks = slices.Clone(is.Tasks)
	for i, t := range group.Tasks {
		if t.Name == name {
			group.Tasks[i] = taskOf(now, name)
		}
	}
	merged.TaskGroups = slices.Clone(merged.TaskGroups)
	for i, g := range merged.TaskGroups {
		if g == is {
			merged.TaskGroups[i] = &group
		}
	}
	return &merged, nil
}

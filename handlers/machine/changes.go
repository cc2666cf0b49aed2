package machine

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// changes is the difference between two versions of a job, made from those that allocations of each group see.
type changes struct {
	*api.JobDiff
	groups map[string]*api.TaskGroupDiff
	tasks  map[string]*api.TaskDiff // by group and task
	silent func(group string) bool  // reports whether no allocation of a group reports its changes
}

func newChanges(job string) *changes {
	return &changes{&api.JobDiff{Type: "None", ID: job}, map[string]*api.TaskGroupDiff{}, map[string]*api.TaskDiff{},
		func(string) bool { return false }}
}

// group returns the difference of a group.
func (c *changes) group(name string) *api.TaskGroupDiff {
	if c.groups[name] == nil {
		c.groups[name] = &api.TaskGroupDiff{Type: "None", Name: name, Updates: map[string]uint64{}}
	}
	return c.groups[name]
}

// add adds a change that the process of one of a group's allocations has reported. A change of another group is left to
// that group's own allocations.
func (c *changes) add(of *api.TaskGroupDiff, field *api.FieldDiff) {
	to, path := &c.Fields, field.Name
	if group, rest, ok := cutName(path, "group "); ok {
		if group != of.Name {
			if c.silent(group) {
				other := c.group(group)
				other.Type, c.Type = "Edited", "Edited"
				other.Fields = []*api.FieldDiff{{Type: "Edited", Name: "group", New: "changes"}}
			}
			return
		}
		of.Type, path, to = "Edited", rest, &of.Fields
		if task, rest, ok := cutName(path, "task "); ok {
			key := group + "/" + task
			if c.tasks[key] == nil {
				c.tasks[key] = &api.TaskDiff{Type: "Edited", Name: task}
				of.Tasks = append(of.Tasks, c.tasks[key])
			}
			for _, annotation := range field.Annotations {
				if !slices.Contains(c.tasks[key].Annotations, annotation) {
					c.tasks[key].Annotations = append(c.tasks[key].Annotations, annotation)
				}
			}
			path, to = rest, &c.tasks[key].Fields
		}
	}
	path = strings.TrimPrefix(path, " > ")
	if !slices.ContainsFunc(*to, func(known *api.FieldDiff) bool { return known.Name == path }) {
		shown := *field
		shown.Name = path
		*to = append(*to, &shown)
	}
	c.Type = "Edited"
}

// cutName cuts a kind with a quoted name off a path.
func cutName(path, kind string) (name, rest string, ok bool) {
	rest, ok = strings.CutPrefix(strings.TrimPrefix(path, " > "), kind+`"`)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, `"`)
}

// history returns the allocation of a job whose process knows most versions of the job, and these versions, the present
// one first. The versions of a job that has ended are not read.
func (h *handlers) history(ctx context.Context, all []*api.Allocation) (of *api.Allocation, versions []*api.Job) {
	found := each(all, func(alloc *api.Allocation) (kept struct{ Versions []*api.Job }) {
		if !alloc.ClientTerminalStatus() {
			_ = h.exchange(ctx, alloc.ID, http.MethodGet, versionsOf(alloc, false), nil, &kept) // another one may know as many
		}
		return kept
	})
	of = all[0]
	for i, kept := range found {
		if len(kept.Versions) > len(versions) {
			of, versions = all[i], kept.Versions
		}
	}
	return of, versions
}

func versionsOf(alloc *api.Allocation, diffs bool) *url.URL {
	query := url.Values{"namespace": {alloc.Namespace}, "diffs": {strconv.FormatBool(diffs)}}
	return jobURL(alloc.JobID, "/versions", query)
}

// jobVersions are the versions of a job that one allocation's process knows.
type jobVersions struct {
	Versions []json.RawMessage
	Diffs    []*api.JobDiff
	wire.Meta
	numbers []*api.Job // Versions, decoded
	group   string     // the allocation's
}

// differences answers GET /v1/job/:job/versions?diffs=true: the versions that one allocation knows, with the changes
// that an allocation of each group sees.
func (h *handlers) differences(ctx context.Context, all []*api.Allocation) (route.Answer, error) {
	index := h.Machine.Index()
	first, _ := h.history(ctx, all)
	asked := []*api.Allocation{first}
	for _, alloc := range all {
		known := func(a *api.Allocation) bool { return a.TaskGroup == alloc.TaskGroup }
		if !alloc.ClientTerminalStatus() && !slices.ContainsFunc(asked, known) {
			of, _ := h.history(ctx, slices.DeleteFunc(slices.Clone(all), func(a *api.Allocation) bool { return !known(a) }))
			asked = append(asked, of)
		}
	}
	answers := each(asked, func(alloc *api.Allocation) (a jobVersions) {
		var numbered struct{ Versions []*api.Job }
		var text json.RawMessage
		if h.exchange(ctx, alloc.ID, http.MethodGet, versionsOf(alloc, true), nil, &text) == nil &&
			json.Unmarshal(text, &a) == nil && json.Unmarshal(text, &numbered) == nil {
			a.numbers = numbered.Versions
		}
		a.group = alloc.TaskGroup
		return a
	})
	whole := answers[0]
	for i := range whole.Diffs {
		c := newChanges(first.JobID)
		c.silent = func(group string) bool {
			return !slices.ContainsFunc(answers, func(a jobVersions) bool { return a.group == group })
		}
		for _, a := range answers {
			j := slices.IndexFunc(a.numbers, func(job *api.Job) bool {
				return ptr.Deref(job.Version) == ptr.Deref(whole.numbers[i].Version)
			})
			if j < 0 || j >= len(a.Diffs) {
				continue
			}
			group := c.group(a.group)
			for _, field := range a.Diffs[j].Fields {
				c.add(group, field)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(c.groups)) {
			if c.groups[name].Type != "None" {
				c.TaskGroups = append(c.TaskGroups, c.groups[name])
			}
		}
		whole.Diffs[i] = c.JobDiff
	}
	whole.Index, whole.KnownLeader = index, true
	return route.Indexed(whole, index)
}

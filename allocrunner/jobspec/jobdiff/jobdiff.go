// Package jobdiff compares two versions of a job, for an allocation that runs the older one. It says in words what
// differs, and whether the running allocation can apply each difference or needs new processes for it.
package jobdiff

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
)

// Change is one difference between two versions of a job, as the running allocation of one of its groups sees it.
type Change struct {
	Path string // `group "web" > task "server" > kill_timeout`, or `job > priority`
	// The running allocation can apply it; otherwise it is destructive and needs new processes.
	InPlace bool
	// Task is the task of which a new process alone would do. It is empty for a change in place, and for one that needs
	// more.
	Task string
	Text string // what changes from what to what, and what that means; never a value that may be secret
}

// RestartSuffices reports whether the running allocation can apply the change if it restarts Task alone. A task that
// has ended runs again only with its whole group: others may have waited for its end, as for a prestart task's.
func (c Change) RestartSuffices(alloc *api.Allocation) bool {
	state := alloc.TaskStates[c.Task]
	return c.Task != "" && (state == nil || state.State != "dead")
}

// RestartAnnotation begins the annotation that a plan has for a change whose RestartSuffices. The task's name follows
// in quotes.
const RestartAnnotation = "with restart=true forces restart of task "

// ByRestarts returns the tasks that the running allocation restarts to apply the changes, in their order. It returns
// false if these restarts don't suffice.
func ByRestarts(alloc *api.Allocation, changes []Change) (tasks []string, suffices bool) {
	for _, c := range Destructive(changes) {
		if !c.RestartSuffices(alloc) {
			return nil, false
		}
		if !slices.Contains(tasks, c.Task) {
			tasks = append(tasks, c.Task)
		}
	}
	return tasks, true
}

// String returns one line: the path and the text.
func (c Change) String() string { return c.Path + ": " + c.Text }

// Destructive returns those of the changes that a running allocation can't apply, in their order.
func Destructive(changes []Change) []Change {
	return slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.InPlace })
}

// Changes returns what differs between two canonical jobs, as jobspec.Parse makes them, for the allocation of a group.
// The changes are in the order of the SDK's fields; without any, the result is empty. It does not compare the fields
// that a server adds to a job (indexes, status, submission time), the name and the audience of default identities, nor
// the order of tasks, services and other named blocks. Other groups of the job differ in place, since they don't run
// here. An empty group is the old job's only one. A field that the tables don't have counts as destructive.
//
// Neither job is changed. They may be any values, canonical or not.
func Changes(old, new *api.Job, group string) []Change {
	c := &comparer{path: []string{"job"}}
	c.parents = old != nil && new != nil && interfaces.IsParent(old) && interfaces.IsParent(new)
	switch {
	case old == nil && new == nil:
		return nil
	case old == nil || new == nil:
		c.add(destructive(newPlace), "there is no job to compare with")
		return c.changes
	}
	if group == "" && len(old.TaskGroups) == 1 && old.TaskGroups[0] != nil {
		group = ptr.Deref(old.TaskGroups[0].Name)
	}
	old, new = withDefaults(old), withDefaults(new)
	c.byTable(reflect.ValueOf(old).Elem(), reflect.ValueOf(new).Elem())
	c.path = nil
	c.groups(old.TaskGroups, new.TaskGroups, group)
	return c.changes
}

// comparer collects changes on the way down through two versions of a job.
type comparer struct {
	path    []string
	changes []Change
	task    string // that is compared; empty outside of tasks

	// restart is the group's restart policy before and after: a task that has its group's needs no line of its own.
	restart [2]*api.RestartPolicy

	parents bool // both jobs start children, and no process has a part of them
}

// in calls f with one more step in the path.
func (c *comparer) in(step string, f func()) {
	c.path = append(c.path, step)
	f()
	c.path = c.path[:len(c.path)-1]
}

func (c *comparer) add(r rule, text string) {
	if c.parents && r.verdict == isDestructive && r.means != otherJob {
		r = inPlace(laterChildren)
	}
	if r.means != "" {
		text += "; " + r.means
	}
	change := Change{Path: strings.Join(c.path, " > "), InPlace: r.verdict == isInPlace, Text: text}
	if r.process {
		change.Task = c.task
	}
	c.changes = append(c.changes, change)
}

// groups compares the group that runs field by field, and the others as wholes.
func (c *comparer) groups(old, new []*api.TaskGroup, runs string) {
	for _, p := range pairs(reflect.ValueOf(old), reflect.ValueOf(new)) {
		c.in(p.step("group"), func() {
			switch {
			case p.name != runs:
				if p.whole("") == "" && same(p.old, p.new) {
					return
				}
				c.add(inPlace("this allocation runs another group"), p.whole("changes"))
			case p.whole("") != "":
				c.add(destructive("the running allocation belongs to this group"), p.whole(""))
			default:
				a, b := p.old.Elem(), p.new.Elem()
				restart := func(group reflect.Value) *api.RestartPolicy {
					return group.Addr().Interface().(*api.TaskGroup).RestartPolicy
				}
				c.restart = [2]*api.RestartPolicy{restart(a), restart(b)}
				c.byTable(a, b)
			}
		})
	}
}

// fields compares the fields of two structs, each by the rule that ruleOf returns for it.
func (c *comparer) fields(a, b reflect.Value, ruleOf func(field string) rule) {
	for field, value := range a.Fields() {
		if ofJob(field) {
			c.field(ruleOf(field.Name), blockName(field), value, b.FieldByIndex(field.Index))
		}
	}
}

// byTable compares two structs that have a table. A field that is missing there is unknown.
func (c *comparer) byTable(a, b reflect.Value) {
	table := tables()[a.Type()]
	if a.Type() == reflect.TypeFor[api.Task]() {
		c.task = a.FieldByName("Name").String()
		defer func() { c.task = "" }()
	}
	c.fields(a, b, func(field string) rule {
		if r, known := table[field]; known {
			return r
		}
		return unknown
	})
}

// field compares two values under a row: blocks by their own fields, lists of blocks by name, everything else at once.
func (c *comparer) field(row rule, name string, a, b reflect.Value) {
	if row.verdict == isIgnored || same(a, b) {
		return
	}
	if old, ok := reflect.TypeAssert[*api.RestartPolicy](a); ok && len(c.path) >= 2 &&
		reflect.DeepEqual(old, c.restart[0]) && reflect.DeepEqual(b.Interface(), c.restart[1]) {
		return // a task has its group's policy, before and after: the group has the changes
	}
	switch elem := blockOf(a.Type()); {
	case elem == nil, a.Kind() == reflect.Pointer && (a.IsNil() || b.IsNil()):
		c.in(name, func() { c.add(row, difference(row, a, b)) })
	case a.Kind() == reflect.Slice, a.Kind() == reflect.Map:
		for _, p := range pairs(a, b) {
			c.in(p.step(name), func() {
				if text := p.whole(""); text != "" {
					c.add(row, text)
				} else if !same(p.old, p.new) {
					c.block(row, reflect.Indirect(p.old), reflect.Indirect(p.new))
				}
			})
		}
	default:
		c.in(name, func() { c.block(row, reflect.Indirect(a), reflect.Indirect(b)) })
	}
}

// block compares two blocks, by their table if the rule says so, otherwise each field by the rule.
func (c *comparer) block(row rule, a, b reflect.Value) {
	if row.table {
		c.byTable(a, b)
	} else {
		c.fields(a, b, func(string) rule { return row })
	}
}

// blockOf returns the struct that a field's value is made of, directly, in a list or by name; nil when it is made of
// something else.
func blockOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

// pair is an element of a list or a map before and after; a missing value is invalid.
type pair struct {
	name     string // empty for an element without one
	number   int    // among those of the name, from 1
	alone    bool   // there is no other of the name
	old, new reflect.Value
}

// step returns the element's place in a path: `task "server"`, `constraint`, `constraint #2`.
func (p pair) step(kind string) string {
	if p.name != "" {
		kind += " " + quote(p.name)
	}
	if !p.alone {
		kind += fmt.Sprintf(" #%d", p.number)
	}
	return kind
}

// whole says that an element is in only one version, and otherwise returns the other text.
func (p pair) whole(otherwise string) string {
	switch {
	case !p.old.IsValid():
		return "is added"
	case !p.new.IsValid():
		return "is removed"
	}
	return otherwise
}

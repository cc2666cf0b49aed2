// Package taskenv builds the environment of a task, or of the allocation as a whole, and interpolates text with it. An
// Env is immutable: With and WithTask return copies, so that no task of a group can see another's variables. It uses
// nothing of this program's own environment.
//
// The sources of variables, each above those before it:
//
//	base        PATH, HOME, USER, LOGNAME, SHELL of the task's user (tasks only)
//	NOMAD_*     facts of the allocation, and NOMAD_META_* (job < group < task meta)
//	task env    the task's env block
//	hooks       what With adds
//
// Values of meta and of the env block are interpolated: ${name} stands for a node fact (attr.*, node.*, meta.*) or for
// a variable of an earlier source or of a hook. It never stands for another variable of the same env block, which has
// no order. Unknown references stay as they are.
package taskenv

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// DefaultPath is the PATH of a task that sets none. It is the one that login and systemd set on Debian and Fedora.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultShell is the SHELL of a user without one (passwd(5)).
const defaultShell = "/bin/sh"

// Config configures an environment. Alloc, with its Job and group, is required.
type Config struct {
	Alloc *api.Allocation

	// Task is the task. It is nil for the environment of the allocation, with which services of the group are
	// interpolated.
	Task *api.Task

	// User is the task's user.
	User interfaces.User

	// Dir sets NOMAD_ALLOC_DIR, NOMAD_TASK_DIR and NOMAD_SECRETS_DIR, unless a path is empty.
	Dir interfaces.TaskDir

	// Ports are the group's and those of its tasks, with the labels of interfaces.Networks.
	Ports []api.PortMapping

	// Node is the machine. Its region is the job's.
	Node api.Node
}

var _ interfaces.Env = (*Env)(nil)

// Env is an environment. It is safe for concurrent use.
type Env struct {
	cfg   Config
	facts map[string]string // base and NOMAD_*
	task  map[string]string // the env block, as written
	hooks map[string]string
	node  map[string]string // attr.*, node.*, meta.*: for references only
	vars  map[string]string // the process's environment
}

// New builds an environment. It does no I/O.
func New(cfg Config) *Env {
	e := &Env{cfg: cfg, facts: map[string]string{}}
	if cfg.Task != nil {
		addBase(e.facts, cfg.User)
		e.task = maps.Clone(cfg.Task.Env)
	}
	addFacts(e.facts, cfg)
	e.node = references(&cfg.Node, e.facts["NOMAD_REGION"])
	e.addMeta(mergedMeta(cfg.Alloc, cfg.Task))
	e.build()
	return e
}

// With returns a copy with more variables, which replace others of the same name. Their values are not interpolated.
func (e *Env) With(more map[string]string) *Env {
	c := *e
	c.hooks = make(map[string]string, len(e.hooks)+len(more))
	maps.Copy(c.hooks, e.hooks)
	maps.Copy(c.hooks, more)
	c.build()
	return &c
}

// Task is the part of an environment that WithTask adds.
type Task struct {
	Task *api.Task
	User interfaces.User
	Dir  interfaces.TaskDir
}

// WithTask returns the environment of a task of the same allocation, with the variables of With.
func (e *Env) WithTask(t Task) *Env {
	cfg := e.cfg
	cfg.Task, cfg.User, cfg.Dir = t.Task, t.User, t.Dir
	return New(cfg).With(e.hooks)
}

// List returns the variables as KEY=value, sorted.
func (e *Env) List() []string {
	list := make([]string, 0, len(e.vars))
	for k, v := range e.vars {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// Get returns the value of a variable, empty when it is not set.
func (e *Env) Get(name string) string { return e.vars[name] }

// ReplaceEnv replaces each ${name} in s by the variable or node fact of that name; unknown ones stay as written.
func (e *Env) ReplaceEnv(s string) string { return replace(s, e.vars, e.node) }

// build makes vars from the other maps.
func (e *Env) build() {
	e.vars = maps.Clone(e.facts)
	for _, k := range slices.Sorted(maps.Keys(e.task)) {
		e.vars[cleanName(k)] = replace(e.task[k], e.hooks, e.facts, e.node)
	}
	maps.Copy(e.vars, e.hooks)
}

// addMeta adds NOMAD_META_k and, in upper case, NOMAD_META_K for each key, and the reference ${meta.k} unless the node
// has meta of that name, which Nomad means by it. If the upper-case form of one key equals another key, the other key
// wins.
func (e *Env) addMeta(meta map[string]string) {
	values := make(map[string]string, len(meta))
	for k, v := range meta {
		values[k] = replace(v, e.facts, e.node)
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		e.facts[cleanName("NOMAD_META_"+strings.ToUpper(k))] = values[k]
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		e.facts[cleanName("NOMAD_META_"+k)] = values[k]
		if _, taken := e.node["meta."+k]; !taken {
			e.node["meta."+k] = values[k]
		}
	}
}

var reference = regexp.MustCompile(`\$\{[A-Za-z0-9_.-]+\}`)

// replace interpolates s. Each name has its value from the first map that has it.
func replace(s string, layers ...map[string]string) string {
	if !strings.Contains(s, "${") {
		return s
	}
	return reference.ReplaceAllStringFunc(s, func(ref string) string {
		name := ref[2 : len(ref)-1]
		for _, layer := range layers {
			if v, ok := layer[name]; ok {
				return v
			}
		}
		return ref
	})
}

// cleanName makes a name that every shell can use: letters, digits, underscores, and dots, which Nomad keeps. Other
// characters become underscores.
func cleanName(name string) string {
	b := []byte(name)
	for i, c := range b {
		switch {
		case c == '_', c == '.', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 0: // a name can't begin with a digit
		default:
			b[i] = '_'
		}
	}
	return string(b)
}

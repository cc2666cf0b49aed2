package allocrunner

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
)

// runtimeReference matches a ${…} in an env block that is resolved at the start of the task, not by a shell.
var runtimeReference = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$\{(NOMAD_|attr\.|meta\.|node\.)[A-Za-z0-9_.-]+\}`)
})

// unresolvable begins those problems of a config that are about a name, not about its value.
var unresolvable = []string{"Unknown variable:", "Unsupported attribute:"}

// unresolved returns a sentence for each reference in a task's config and env block that can't be resolved at the
// task's start, and for each template in its config that can't be read. The task fails for each of fails, and for each
// of config unless the machine's metadata changes.
func unresolved(alloc *api.Allocation, t *api.Task, user interfaces.User, node api.Node) (fails, config, env []string) {
	e := referable(alloc, t, user, node)
	_, err := e.EvalConfig(t.Config)
	if invalid, ok := errors.AsType[*taskenv.ConfigError](err); ok {
		for _, problem := range invalid.Problems {
			if slices.ContainsFunc(unresolvable, func(kind string) bool { return strings.HasPrefix(problem, kind) }) {
				unless := unlessMeta(fmt.Sprint(t.Config))
				if unless != "" && (strings.HasPrefix(problem, unresolvable[1]) || strings.Contains(problem, `named "meta"`)) {
					config = append(config, problem+" The task fails to start"+unless+".")
				} else {
					fails = append(fails, problem+" The task fails to start.")
				}
			}
		}
		for _, problem := range invalid.Syntax {
			fails = append(fails, problem+" The task fails to start. For a shell's own braces, write $$${ and %%%{.")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Env)) {
		for _, ref := range runtimeReference().FindAllString(t.Env[name], -1) {
			if e.ReplaceEnv(ref) == ref {
				env = append(env, fmt.Sprintf("%s refers to %s, which does not exist: it stays as it is written%s",
					name, ref, unlessMeta(ref)))
			}
		}
	}
	return fails, config, env
}

// unlessMeta returns words to add to a problem that the machine's metadata may solve.
func unlessMeta(text string) string {
	if !strings.Contains(text, "${meta.") {
		return ""
	}
	return ", unless the machine's metadata has its ${meta.…} by then (nomad node meta apply)"
}

// referable returns an environment with all names that the task's environment has at its start. Values that are known
// only then are made up.
func referable(alloc *api.Allocation, t *api.Task, user interfaces.User, node api.Node) *taskenv.Env {
	const later = "1"
	node.CgroupParent = later
	hooks := map[string]string{"NOMAD_UNIX_ADDR": later}
	for _, id := range append([]*api.WorkloadIdentity{t.Identity}, t.Identities...) {
		switch {
		case id == nil || !id.Env:
		case id.Name == "" || id.Name == "default":
			hooks["NOMAD_TOKEN"] = later
		default:
			hooks["NOMAD_TOKEN_"+id.Name] = later
		}
	}
	mappings := interfaces.Ports(interfaces.Networks(alloc.GetTaskGroup()))
	for i := range mappings {
		mappings[i].HostIP = later
	}
	return taskenv.New(taskenv.Config{Alloc: alloc, Ports: mappings, Node: node}).With(hooks).WithTask(taskenv.Task{
		Task: t, User: user, Dir: interfaces.TaskDir{SharedDir: later, LocalDir: later, SecretsDir: later},
	})
}

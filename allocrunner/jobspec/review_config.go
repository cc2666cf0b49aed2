package jobspec

import (
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/rawexec"
)

// config looks at a task's driver config with the driver's own eyes, as far as it is known before the task runs.
func (r *reviewer) config(t *api.Task) {
	if t.Driver != "raw_exec" {
		return
	}
	if _, err := rawexec.Parse(presumed(t.Config)); err != nil {
		r.refuse("config", "%s", strings.TrimPrefix(err.Error(), "raw_exec config: "))
	}
}

// presumed is a config without its runtime references: text that has one becomes a path, which is right for every text, and
// numbers that are references are left out.
func presumed(config map[string]any) map[string]any {
	known := maps.Clone(config)
	for key, value := range known {
		s, ok := value.(string)
		switch {
		case !ok || !strings.Contains(s, "${"):
		case key == "oom_score_adj":
			delete(known, key)
		default:
			known[key] = "/presumed"
		}
	}
	return known
}

// environment refuses names and values that no process can be given.
func (r *reviewer) environment(feature string, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			r.refuse(feature, "%q is no name of an environment variable", name)
		case strings.ContainsRune(env[name], 0):
			r.refuse(feature, "the value of %s has a NUL byte in it", name)
		}
	}
}

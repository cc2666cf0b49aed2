// Package rawexec is the driver raw_exec: it runs a program of the machine as the task's user, without isolation from
// the machine.
package rawexec

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"taskapi/allocrunner/drivers"
)

// Driver is the driver raw_exec.
type Driver struct{}

var (
	_ drivers.Driver   = Driver{}
	_ drivers.Precheck = Driver{}
)

func (Driver) Name() string { return "raw_exec" }

func (Driver) Capabilities() drivers.Capabilities {
	return drivers.Capabilities{Users: true, Foreground: true}
}

// Fingerprint finds nothing missing: every machine has processes.
func (Driver) Fingerprint() drivers.Fingerprint { return drivers.Fingerprint{} }

// Validate replaces a reference in a text by a path, which is valid for every text. It leaves out a number that is a
// reference.
func (Driver) Validate(config map[string]any) error {
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
	_, err := parse(known)
	return err
}

// Missing looks for the task's program.
func (Driver) Missing(task drivers.Task) string {
	c, err := evaluate(task)
	if err != nil { // Validate says what is wrong, or it is known at the start only
		return ""
	}
	return drivers.Missing(c.Command, c.scrub(task.Env.List()))
}

// evaluate reads a task's config block, with its references replaced.
func evaluate(task drivers.Task) (config, error) {
	evaluated, err := task.Env.EvalConfig(task.Task.Config)
	if err != nil {
		return config{}, err
	}
	c, err := parse(evaluated)
	if err != nil {
		return config{}, fmt.Errorf("raw_exec config: %w", err)
	}
	return c, nil
}

// config is the config block of a task with driver raw_exec.
type config struct {
	Command       string
	Args          []string
	WorkDir       string   // absolute; empty: the task directory
	OOMScoreAdj   int      // 0 to 1000
	DeniedEnvvars []string // names, each perhaps with a * at its beginning or end or both
}

// The keys of the config block, each with the reason if it can't be honoured.
var keys = map[string]func(*config, any) error{
	"command":       func(c *config, v any) error { return text(v, &c.Command) },
	"args":          func(c *config, v any) error { return texts(v, &c.Args) },
	"work_dir":      func(c *config, v any) error { return text(v, &c.WorkDir) },
	"oom_score_adj": func(c *config, v any) error { return number(v, &c.OOMScoreAdj) },
	"denied_envvars": func(c *config, v any) error {
		return texts(v, &c.DeniedEnvvars)
	},
	"cgroup_v2_override": refuseCgroup,
	"cgroup_v1_override": refuseCgroup,
}

func refuseCgroup(*config, any) error {
	return fmt.Errorf("is not supported, because each task is kept in a cgroup of its own to be stopped whole: " +
		"remove it")
}

// parse reads the config block, evaluated: values are strings, booleans, numbers, lists and maps. The error names the
// key and what would be right.
func parse(block map[string]any) (config, error) {
	var c config
	for _, key := range slices.Sorted(maps.Keys(block)) {
		set, ok := keys[key]
		if !ok {
			known := slices.Sorted(maps.Keys(keys))
			return config{}, fmt.Errorf("unknown key %q; known are %s", key, strings.Join(known, ", "))
		}
		if block[key] == nil {
			continue
		}
		if err := set(&c, block[key]); err != nil {
			return config{}, fmt.Errorf("%s %w", key, err)
		}
	}
	switch {
	case c.Command == "":
		return config{}, fmt.Errorf("command is missing: name the program to run")
	case c.WorkDir != "" && !filepath.IsAbs(c.WorkDir):
		return config{}, fmt.Errorf("work_dir %q must be an absolute path; ${NOMAD_TASK_DIR} begins one", c.WorkDir)
	case c.OOMScoreAdj < 0 || c.OOMScoreAdj > 1000:
		return config{}, fmt.Errorf("oom_score_adj is %d: it must be from 0 to 1000", c.OOMScoreAdj)
	}
	return c, nil
}

// scrub returns the entries of env, KEY=value, whose names denied_envvars does not match.
func (c config) scrub(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.ContainsFunc(c.DeniedEnvvars, func(pattern string) bool { return matches(pattern, name) })
	})
}

// matches reports whether a pattern, which may have a * at its beginning and its end, matches.
func matches(pattern, name string) bool {
	tail, openStart := strings.CutPrefix(pattern, "*")
	middle, openEnd := strings.CutSuffix(tail, "*")
	switch {
	case openStart && openEnd:
		return strings.Contains(name, middle)
	case openStart:
		return strings.HasSuffix(name, tail)
	case openEnd:
		return strings.HasPrefix(name, middle)
	}
	return name == pattern
}

// text reads every value that HCL accepts as a string.
func text(v any, to *string) error {
	switch v := v.(type) {
	case string, bool, int, int64:
		*to = fmt.Sprint(v)
	case float64:
		*to = strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Errorf("must be a string, not %s", kind(v))
	}
	return nil
}

// texts reads a list of values, each as text reads it.
func texts(v any, to *[]string) error {
	switch v := v.(type) {
	case []string:
		*to = slices.Clone(v)
		return nil
	case []any:
		list := make([]string, len(v))
		for i, item := range v {
			if err := text(item, &list[i]); err != nil {
				return fmt.Errorf("must be a list of strings, but item %d is %s", i+1, kind(item))
			}
		}
		*to = list
		return nil
	}
	return fmt.Errorf("must be a list of strings, not %s", kind(v))
}

// number reads a whole number, also in a string, as HCL does.
func number(v any, to *int) error {
	var digits string
	if _, isBool := v.(bool); isBool || text(v, &digits) != nil {
		return fmt.Errorf("must be a whole number, not %s", kind(v))
	}
	n, err := strconv.Atoi(digits)
	if err != nil {
		return fmt.Errorf("must be a whole number, not %q", digits)
	}
	*to = n
	return nil
}

// kind names a value's type in the words of a job's author.
func kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int, int64, float64:
		return "a number"
	case []any, []string:
		return "a list"
	}
	return "a block or map"
}

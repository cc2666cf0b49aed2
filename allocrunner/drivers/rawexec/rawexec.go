// Package rawexec is the driver raw_exec: it runs a program of the machine as the task's user, without isolation from
// the machine.
package rawexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agext/levenshtein"

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

// Missing looks for the task's program. Arguments don't matter for that, and may refer to what is known at the start.
func (Driver) Missing(task drivers.Task) string {
	t := *task.Task
	t.Config = maps.Clone(t.Config)
	maps.DeleteFunc(t.Config, func(key string, _ any) bool { return key != "command" && key != "denied_envvars" })
	c, err := evaluate(drivers.Task{Task: &t, User: task.User, Env: task.Env})
	if err != nil { // Validate says what is wrong, or it is known at the start only
		return ""
	}
	_ = texts(task.Task.Config["args"], &c.Args) // as they are written, for the hint; Validate refuses others
	env := c.scrub(task.Env.List())
	missing := drivers.Missing(c.Command, env)
	if missing == "" {
		return ""
	}
	return c.splitHint(env) + missing
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

// meant has the keys that authors of job files write for others.
var meant = map[string]string{
	"cmd": "command", "exec": "command", "executable": "command", "program": "command", "binary": "command",
	"path": "command", "entrypoint": "command", "run": "command", "commands": "command",
	"arguments": "args", "arg": "args", "argv": "args",
	"workdir": "work_dir", "working_dir": "work_dir", "working_directory": "work_dir",
	"cwd": "work_dir", "dir": "work_dir",
}

// errUnknown says what to write in place of a key.
func errUnknown(key string, value any) error {
	known := slices.Sorted(maps.Keys(keys))
	right := meant[key]
	for _, k := range known {
		if right == "" && levenshtein.Distance(key, k, nil) <= 2 {
			right = k
		}
	}
	switch {
	case right != "":
		return fmt.Errorf("unknown key %q: write %s", key, line(right, value))
	case key == "env" || key == "environment":
		return fmt.Errorf("unknown key %q: the block env { } stands beside config, in the task", key)
	case key == "ports" || key == "port_map":
		return fmt.Errorf("unknown key %q: leave it out; a task of this driver uses the ports of its group's network block, "+
			"which it finds as NOMAD_PORT_label", key)
	case key == "image":
		return fmt.Errorf("unknown key %q: this driver runs a program of this machine, command, and no container", key)
	}
	return fmt.Errorf("unknown key %q; known are %s", key, strings.Join(known, ", "))
}

// longestLine is the length of the longest line of a job file that is proposed with its value.
const longestLine = 100

// line returns the line of a job file that sets a key.
func line(key string, value any) string {
	if text, ok := value.(string); ok && key == "args" {
		value = strings.Fields(text)
	}
	if command, ok := value.(string); ok && key == "command" {
		if words := strings.Fields(command); len(words) > 1 {
			return line(key, words[0]) + " and " + line("args", words[1:])
		}
	}
	var b strings.Builder
	enc := json.NewEncoder(&b) // HCL reads JSON's texts, numbers and lists
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil || b.Len() > longestLine {
		return key + " = ..."
	}
	written := strings.TrimSuffix(b.String(), "\n")
	if _, isText := value.(string); !isText {
		written = strings.ReplaceAll(written, `","`, `", "`)
	}
	return key + " = " + written
}

// parse reads the config block, evaluated: values are strings, booleans, numbers, lists and maps. The error is a
// *drivers.ArgumentError.
func parse(block map[string]any) (config, error) {
	var c config
	for _, key := range slices.Sorted(maps.Keys(block)) {
		set, ok := keys[key]
		if !ok {
			return config{}, &drivers.ArgumentError{Argument: key, Err: errUnknown(key, block[key])}
		}
		if block[key] == nil {
			continue
		}
		if err := set(&c, block[key]); err != nil {
			if text, ok := block[key].(string); ok && key == "args" {
				err = fmt.Errorf("%w; write %s", err, line(key, text))
			}
			return config{}, &drivers.ArgumentError{Argument: key, Err: fmt.Errorf("%s %w", key, err)}
		}
	}
	switch {
	case c.Command == "":
		return config{}, &drivers.ArgumentError{Argument: "command",
			Err: errors.New(`command is missing: name the program to run, as in command = "/bin/sleep"`)}
	case c.WorkDir != "" && !filepath.IsAbs(c.WorkDir):
		return config{}, &drivers.ArgumentError{Argument: "work_dir",
			Err: fmt.Errorf("work_dir %q must be an absolute path; ${NOMAD_TASK_DIR} begins one", c.WorkDir)}
	case c.OOMScoreAdj < 0 || c.OOMScoreAdj > 1000:
		return config{}, &drivers.ArgumentError{Argument: "oom_score_adj",
			Err: fmt.Errorf("oom_score_adj is %d: it must be from 0 to 1000", c.OOMScoreAdj)}
	}
	return c, nil
}

// splitHint returns what to write in place of a command that was not found, if it is a program with its arguments, to
// stand before the reason. Otherwise it is empty.
func (c config) splitHint(env []string) string {
	words := strings.Fields(c.Command)
	if len(words) < 2 || drivers.Missing(words[0], env) != "" {
		return ""
	}
	return fmt.Sprintf("command names a program, and args its arguments: write %s and %s: ", line("command", words[0]),
		line("args", append(words[1:], c.Args...)))
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

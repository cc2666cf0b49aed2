package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/logfile"
)

// The keys of an allocation. Each holds one value as JSON.
const (
	allocKey = "alloc" // api.Allocation without Job and TaskStates
	jobKey   = "job"   // api.Job, written when it is another one
	taskKey  = "task/" // and the task's name: interfaces.SavedTask
)

// fields lists the other values. of returns a change's value, nil when it has none. into returns where the value is
// read to.
var fields = []struct {
	key  string
	of   func(interfaces.Change) any
	into func(*interfaces.Saved) any
}{
	{"checks", func(c interfaces.Change) any { return given(c.Checks != nil, c.Checks) },
		func(s *interfaces.Saved) any { return &s.Checks }},
	{"over", func(c interfaces.Change) any { return given(c.Terminal, true) },
		func(s *interfaces.Saved) any { return &s.Terminal }},
	{"deployments", func(c interfaces.Change) any { return given(c.Deployments != nil, c.Deployments) },
		func(s *interfaces.Saved) any { return &s.Deployments }},
	{"kill", func(c interfaces.Change) any { return given(!c.KillAfter.IsZero(), c.KillAfter) },
		func(s *interfaces.Saved) any { return &s.KillAfter }},
	{"life", func(c interfaces.Change) any { return given(c.Life != "", c.Life) },
		func(s *interfaces.Saved) any { return &s.Life }},
}

func given(is bool, value any) any {
	if is {
		return value
	}
	return nil
}

// values are the values by their keys, as JSON.
type values map[string][]byte

// add encodes a value. Errors: the key is too long; those of JSON.
func (v values) add(key string, value any) error {
	if len(key) > logfile.MaxKey {
		return fmt.Errorf("put allocation: a task's name has %d bytes, the most is %d", len(key)-len(taskKey),
			logfile.MaxKey-len(taskKey))
	}
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("put allocation: encode %s: %w", key, err)
	}
	v[key] = body
	return nil
}

// encode returns the values of a change, and the job that is the latest then. The job is among the values unless it is
// the one that was the latest before.
func encode(c interfaces.Change, before *api.Job) (set values, job *api.Job, err error) {
	set, job = values{}, before
	var errs []error
	if c.ID == "" {
		return nil, nil, errors.New("put allocation: the change has no ID")
	}
	if c.Alloc != nil {
		if c.Alloc.ID != c.ID {
			return nil, nil, fmt.Errorf("put allocation %q: the change has allocation %q", c.ID, c.Alloc.ID)
		}
		alloc := *c.Alloc
		alloc.Job, alloc.TaskStates = nil, nil
		errs = append(errs, set.add(allocKey, &alloc))
		if c.Alloc.Job != nil && c.Alloc.Job != before {
			job = c.Alloc.Job
			errs = append(errs, set.add(jobKey, job))
		}
	}
	for _, f := range fields {
		if value := f.of(c); value != nil {
			errs = append(errs, set.add(f.key, value))
		}
	}
	for name, task := range c.Tasks {
		errs = append(errs, set.add(taskKey+name, task))
	}
	return set, job, errors.Join(errs...)
}

// compose composes an allocation from its values. A value that can't be read is left out, and is one of the problems.
func compose(set values) (*interfaces.Saved, []error) {
	saved := &interfaces.Saved{}
	var problems []error
	read := func(key string, into any) bool {
		body, ok := set[key]
		if !ok {
			return false
		}
		err := json.Unmarshal(body, into)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", key, err))
		}
		return err == nil
	}
	read(allocKey, &saved.Alloc)
	for _, f := range fields {
		read(f.key, f.into(saved))
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if name, ok := strings.CutPrefix(key, taskKey); ok {
			var task interfaces.SavedTask
			if !read(key, &task) {
				continue
			}
			if saved.Tasks == nil {
				saved.Tasks = map[string]interfaces.SavedTask{}
			}
			saved.Tasks[name] = task
		}
	}
	if saved.Alloc != nil {
		read(jobKey, &saved.Alloc.Job)
		saved.ShowTasks()
	}
	return saved, problems
}

package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
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
	overKey  = "over"  // interfaces.Saved.Terminal
)

// fields lists the other values.
var fields = []struct {
	key string
	of  func(*interfaces.Saved) any
}{
	{"checks", func(s *interfaces.Saved) any { return &s.Checks }},
	{overKey, func(s *interfaces.Saved) any { return &s.Terminal }},
	{"deployments", func(s *interfaces.Saved) any { return &s.Deployments }},
	{"kill", func(s *interfaces.Saved) any { return &s.KillAfter }},
	{"life", func(s *interfaces.Saved) any { return &s.Life }},
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
func encode(c interfaces.Saved, before *api.Job) (set values, job *api.Job, err error) {
	set, job = values{}, before
	var errs []error
	if c.Alloc != nil {
		alloc := *c.Alloc
		alloc.Job, alloc.TaskStates = nil, nil
		errs = append(errs, set.add(allocKey, &alloc))
		if c.Alloc.Job != nil && c.Alloc.Job != before {
			job = c.Alloc.Job
			errs = append(errs, set.add(jobKey, job))
		}
	}
	for _, f := range fields {
		if value := reflect.ValueOf(f.of(&c)).Elem(); !value.IsZero() {
			errs = append(errs, set.add(f.key, value.Interface()))
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
		read(f.key, f.of(saved))
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

package output

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// The words for a task's state that Nomad has none for.
const (
	taskComplete   = "complete"
	taskFailed     = "failed"
	taskRestarting = "restarting"
	taskPaused     = "paused"
	taskStopped    = "stopped"
	taskNotStarted = "not started" // it has ended before it began
)

// NotRunning is the state of a task that was saved as running, but has no process left.
const NotRunning = "not running"

// TaskWord returns a task's state in a word. The words are Nomad's, with three exceptions: a task between two runs is
// "restarting", one that its schedule or an operator keeps from running is "paused" or "stopped", and a dead task is
// "complete", "failed" or "not started".
func TaskWord(s *api.TaskState) string {
	switch {
	case s == nil:
		return "pending"
	case s.State == "dead" && s.Failed:
		return taskFailed
	case s.State == "dead" && s.StartedAt.IsZero():
		return taskNotStarted
	case s.State == "dead":
		return taskComplete
	case s.State == "pending" && interfaces.ShownSchedule(s) == interfaces.ScheduleForcedPause:
		return taskStopped
	case s.State == "pending" && interfaces.ShownSchedule(s).Pauses():
		return taskPaused
	case s.State == "pending" && s.Restarts > 0:
		return taskRestarting
	}
	return s.State
}

// TaskState returns TaskWord with the exit code of a task that has ended, as "complete (0)".
func TaskState(s *api.TaskState) string {
	word := TaskWord(s)
	if word != taskComplete && word != taskFailed {
		return word
	}
	for _, e := range slices.Backward(s.Events) {
		switch e.Type {
		case api.TaskTerminated:
			return fmt.Sprintf("%s (%s)", word, cmp.Or(e.Details["exit_code"], "?"))
		case api.TaskStarted, api.TaskDriverFailure, api.TaskSetupFailure, api.TaskFailedValidation:
			return word // how the last run ended is not known, or there was none
		}
	}
	return word
}

// TaskCounts says how many tasks have each state, as "2 running, 1 complete".
func TaskCounts(states []*api.TaskState) string {
	counts := map[string]int{}
	for _, s := range states {
		counts[TaskWord(s)]++
	}
	var parts []string
	words := []string{"running", "pending", taskRestarting, taskPaused, taskStopped, taskComplete, taskFailed,
		taskNotStarted, NotRunning}
	for _, word := range words {
		if n := counts[word]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	return strings.Join(parts, ", ")
}

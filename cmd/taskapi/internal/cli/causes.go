package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

// problems says of each task how it stands, the ones that don't run first.
func problems(alloc *api.Allocation) []string {
	var bad, good []string
	for _, name := range taskNames(alloc) {
		state := alloc.TaskStates[name]
		if state == nil {
			continue
		}
		text := fmt.Sprintf("task %q is %s, with %d %s", name, state.State, state.Restarts, plural(int(state.Restarts), "restart", "restarts"))
		if state.State == "running" {
			good = append(good, text)
		} else {
			bad = append(bad, text)
		}
	}
	return append(bad, good...)
}

// troubled returns the tasks that have failed or ended with an error of late, in the order of the job.
func troubled(alloc *api.Allocation) []string {
	return slices.DeleteFunc(taskNames(alloc), func(name string) bool {
		state := alloc.TaskStates[name]
		if state == nil {
			return true
		}
		if state.Failed {
			return false
		}
		for _, e := range slices.Backward(state.Events) {
			if e.Type == api.TaskTerminated {
				return e.ExitCode == 0 && e.Signal == 0
			}
		}
		return true
	})
}

// withOutput adds to an error the latest lines of what its troubled tasks have written to standard error.
func (l layout) withOutput(alloc *api.Allocation, err error) error {
	if err == nil {
		return nil
	}
	words := lastWords{files: allocrunner.Files(l.Alloc(alloc.ID), alloc.GetTaskGroup())}
	for _, task := range troubled(alloc) {
		lines := words.of(task)
		if len(lines) == 0 {
			continue
		}
		for i, line := range lines {
			lines[i] = "\n  " + clipped(linewriter.OneLine(strings.TrimSuffix(line, "\r")), maxLastLine)
		}
		err = fmt.Errorf("%w\nthe last lines of %q on standard error, in allocation %s:%s", err, task, output.ShortID(alloc.ID), strings.Join(lines, ""))
	}
	return err
}

// maxLastLine is how much of each of these lines is printed, in letters.
const maxLastLine = 300

// withCauses adds to an error why tasks can't be started and which checks do not succeed, and what withOutput adds.
func (l layout) withCauses(alloc *api.Allocation, checks api.AllocCheckStatuses, err error) error {
	for _, name := range taskNames(alloc) {
		if failure := failedStart(alloc.TaskStates[name]); failure != nil {
			err = fmt.Errorf("%w\ntask %q failed to start: %s", err, name, linewriter.OneLine(failure.DisplayMessage))
		}
	}
	for _, c := range sortedChecks(checks) {
		if c.Status != checkSuccess {
			err = fmt.Errorf("%w\n%s", err, checkWords(c))
		}
	}
	return l.withOutput(alloc, err)
}

const checkSuccess = "success"

// checkWords says what a check's latest result is.
func checkWords(c api.AllocCheckStatus) string {
	return fmt.Sprintf("the latest result of check %q of service %q is %s: %s", c.Check, c.Service, c.Status,
		clipped(linewriter.OneLine(strings.TrimSpace(c.Output)), maxLastLine))
}

// failedStart returns why a task's latest attempt to start has failed, nil when that has started.
func failedStart(state *api.TaskState) *api.TaskEvent {
	if state == nil {
		return nil
	}
	for _, e := range slices.Backward(state.Events) {
		switch e.Type {
		case api.TaskStarted, api.TaskTerminated:
			return nil
		case api.TaskDriverFailure, api.TaskFailedValidation, api.TaskSetupFailure:
			return e
		}
	}
	return nil
}

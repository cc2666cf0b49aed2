package start

import (
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

// Problems describes the state of each task, those that don't run first.
func Problems(alloc *api.Allocation) []string {
	var bad, good []string
	for _, name := range base.TaskNames(alloc) {
		state := alloc.TaskStates[name]
		if state == nil {
			continue
		}
		text := fmt.Sprintf("task %q is %s, with %d %s", name, output.TaskState(state), state.Restarts,
			base.Plural(int(state.Restarts), "restart", "restarts"))
		if state.State == "running" {
			good = append(good, text)
		} else {
			bad = append(bad, text)
		}
	}
	return append(bad, good...)
}

// WithOutput adds to an error the latest lines of standard error of the tasks that have failed, or have recently ended
// with an error.
func WithOutput(l base.Layout, alloc *api.Allocation, err error) error {
	words := follow.LastWords{Files: l.Files(alloc)}
	for _, task := range base.TaskNames(alloc) {
		state := alloc.TaskStates[task]
		e := base.LastEvent(state, api.TaskTerminated, api.TaskKilled)
		if state == nil || !state.Failed && (e == nil || e.Type == api.TaskKilled || e.Details["exit_code"] == "0") {
			continue
		}
		lines := words.Of(task)
		if len(lines) == 0 {
			continue
		}
		for i, line := range lines {
			lines[i] = "\n  " + base.Clipped(linewriter.OneLine(strings.TrimSuffix(line, "\r")), base.MaxLastLine)
		}
		err = fmt.Errorf("%w\nthe last lines of %q on standard error, in allocation %s:%s", err, task,
			output.ShortID(alloc.ID), strings.Join(lines, ""))
	}
	return err
}

// WithCauses adds to an error why tasks can't be started and which checks do not succeed, and what WithOutput adds.
func WithCauses(l base.Layout, alloc *api.Allocation, checks api.AllocCheckStatuses, err error) error {
	for _, name := range base.TaskNames(alloc) {
		if failure := FailedStart(alloc.TaskStates[name]); failure != nil {
			err = fmt.Errorf("%w\ntask %q failed to start: %s", err, name, linewriter.OneLine(failure.DisplayMessage))
		}
	}
	for _, c := range base.SortedChecks(checks) {
		if c.Status != base.CheckSuccess {
			err = fmt.Errorf("%w\n%s", err, CheckWords(c))
		}
	}
	return WithOutput(l, alloc, err)
}

// CheckWords says what a check's latest result is.
func CheckWords(c api.AllocCheckStatus) string {
	return fmt.Sprintf("the latest result of check %s of service %q is %s: %s", interfaces.Quote(c.Check), c.Service,
		c.Status, base.Clipped(linewriter.OneLine(output.CheckOutput(c)), base.MaxLastLine))
}

// FailedStart returns why a task's latest attempt to start has failed, nil if the task has started.
func FailedStart(state *api.TaskState) *api.TaskEvent {
	e := base.LastEvent(state, api.TaskStarted, api.TaskTerminated, api.TaskDriverFailure, api.TaskFailedValidation,
		api.TaskSetupFailure)
	if e == nil || e.Type == api.TaskStarted || e.Type == api.TaskTerminated {
		return nil
	}
	return e
}

// Warnings prints the warnings in the log of a process in the background, which one in the foreground prints itself.
func Warnings(log io.Reader, out io.Writer) error {
	text, err := io.ReadAll(log)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "time=") && strings.Contains(line, " level=WARN ") {
			if _, err := io.WriteString(out, line); err != nil {
				return err
			}
		}
	}
	return nil
}

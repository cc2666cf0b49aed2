package taskrunner

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/readiness"
)

// maxEvents is how many events a task keeps: Nomad's number. The oldest go first.
const maxEvents = 10

// newEvent returns an event, whose Time is set when it is emitted. The details are also in the fields that older
// clients read. They are never nil: on the wire an event without any has {}.
func newEvent(kind, message string, details map[string]string) *api.TaskEvent {
	if details == nil {
		details = map[string]string{}
	}
	return &api.TaskEvent{
		Type: kind, DisplayMessage: message, Details: details, Message: details["message"],
		RestartReason: details["restart_reason"], FailedSibling: details["failed_sibling"],
		DriverError: details["driver_error"], ValidationError: details["validation_error"],
		KillReason: details["kill_reason"],
		SetupError: details["setup_error"], DownloadError: details["download_error"],
		FailsTask: details["fails_task"] == "true",
	}
}

func receivedEvent() *api.TaskEvent {
	return newEvent(api.TaskReceived, "Task received by client", nil)
}

func setupEvent() *api.TaskEvent {
	const message = "Building Task Directory"
	return newEvent(api.TaskSetup, message, map[string]string{"message": message})
}

func startedEvent(details map[string]string) *api.TaskEvent {
	return newEvent(api.TaskStarted, "Task started by client", details)
}

// scheduleEvent has Nomad's types and words. A task without a schedule runs because an operator says so.
func (r rules) scheduleEvent(s interfaces.ScheduleState) *api.TaskEvent {
	kind, message := interfaces.EventRunning, "Running due to "
	if s.Pauses() {
		kind, message = interfaces.EventPausing, "Pausing due to "
	}
	if s == interfaces.ScheduleForcedPause || s == interfaces.ScheduleForcedRun || r.times.Always() {
		message += "override"
	} else {
		message += "schedule"
	}
	return newEvent(kind, message, map[string]string{interfaces.DetailSchedule: string(s)})
}

func readyEvent() *api.TaskEvent {
	return newEvent(readiness.EventReady, "The task says that it is ready", nil)
}

func statusEvent(status string) *api.TaskEvent {
	return newEvent(readiness.EventStatus, status, map[string]string{"status": status})
}

func terminatedEvent(r interfaces.ExitResult) *api.TaskEvent {
	message := fmt.Sprintf("Exit Code: %d", r.ExitCode)
	if r.Signal != 0 {
		message += fmt.Sprintf(", Signal: %d", r.Signal)
	}
	if r.OOMKilled && r.Err == "" {
		r.Err = "out of memory: give the task more in its resources block, or find what it is used for"
	}
	if r.Err = cmp.Or(r.Err, r.Killed); r.Err != "" {
		message += fmt.Sprintf(", Exit Message: %q", r.Err)
	}
	return newEvent(api.TaskTerminated, message, map[string]string{
		"exit_code":  strconv.Itoa(r.ExitCode),
		"signal":     strconv.Itoa(r.Signal),
		"oom_killed": strconv.FormatBool(r.OOMKilled),
	})
}

func leftoverEvent(n int) *api.TaskEvent {
	message := fmt.Sprintf("Killed %d processes that the task left behind", n)
	if n == 1 {
		message = "Killed 1 process that the task left behind"
	}
	e := newEvent(api.TaskDriverMessage, message, map[string]string{"leftover_processes": strconv.Itoa(n)})
	e.DriverMessage = message
	return e
}

func restartingEvent(delay time.Duration, reason string) *api.TaskEvent {
	message := fmt.Sprintf("Task restarting in %v", delay)
	if reason != "" && reason != "Restart within policy" {
		message = reason + " - " + message
	}
	e := newEvent(api.TaskRestarting, message, map[string]string{
		"start_delay":    strconv.FormatInt(int64(delay), 10),
		"restart_reason": reason,
	})
	e.StartDelay = int64(delay)
	return e
}

func notRestartingEvent(reason string) *api.TaskEvent {
	return newEvent(api.TaskNotRestarting, reason, map[string]string{"restart_reason": reason, "fails_task": "true"})
}

func restartSignaledEvent(reason string) *api.TaskEvent {
	return newEvent(api.TaskRestartSignal, reason, map[string]string{"restart_reason": reason})
}

func killingEvent(mode KillMode, timeout time.Duration) *api.TaskEvent {
	message := fmt.Sprintf("Sent interrupt. Waiting %v before force killing", timeout)
	if mode == AtOnce {
		timeout, message = 0, "Force killing"
	}
	e := newEvent(api.TaskKilling, message, map[string]string{"kill_timeout": timeout.String()})
	e.KillTimeout = timeout
	return e
}

// failedEvent is the event of a kill by one of the task's hooks.
func failedEvent(reason string) *api.TaskEvent {
	return newEvent(api.TaskKilling, reason, map[string]string{"fails_task": "true"})
}

func killedEvent() *api.TaskEvent { return newEvent(api.TaskKilled, "Task successfully killed", nil) }

func shutdownDelayEvent(d time.Duration) *api.TaskEvent {
	return newEvent("Waiting for shutdown delay",
		fmt.Sprintf("Waiting for shutdown_delay of %v before killing the task.", d), nil)
}

func groupDelayEvent(d time.Duration) *api.TaskEvent {
	return newEvent("Waiting for shutdown delay",
		fmt.Sprintf("Waiting for the group's shutdown_delay of %v before killing the task.", d), nil)
}

func signalingEvent(name string) *api.TaskEvent {
	return newEvent(api.TaskSignaling, "Task being sent a signal", map[string]string{"signal": name})
}

func allocUnhealthyEvent(reason string) *api.TaskEvent {
	return newEvent("Alloc Unhealthy", reason, map[string]string{"message": reason})
}

// ExpiredEvent returns the event of a kill because the group's max_run_duration is over.
func ExpiredEvent() *api.TaskEvent {
	return newEvent(api.TaskKilling, interfaces.DescriptionExpired, nil)
}

// TenureLostEvent returns the event of a kill because another machine runs the allocation.
func TenureLostEvent() *api.TaskEvent {
	why := interfaces.ErrTenureLost.Error()
	return newEvent(api.TaskKilling, "Force killing: "+why, map[string]string{"kill_timeout": "0s", "kill_reason": why})
}

// SiblingFailedEvent returns the reason for killing a task when another of its group failed.
func SiblingFailedEvent(sibling string) *api.TaskEvent {
	return newEvent(api.TaskSiblingFailed, fmt.Sprintf("Task's sibling %q failed", sibling),
		map[string]string{"failed_sibling": sibling})
}

// LeaderDeadEvent returns the reason for killing a task when its group's leader has ended.
func LeaderDeadEvent() *api.TaskEvent {
	return newEvent(api.TaskLeaderDead, "Leader Task in Group dead", nil)
}

// MainTasksDeadEvent returns the reason for killing a sidecar when all main tasks are dead.
func MainTasksDeadEvent() *api.TaskEvent {
	return newEvent("Main Tasks Dead", "Main tasks in the group died", nil)
}

func driverFailureEvent(reason string) *api.TaskEvent {
	return newEvent(api.TaskDriverFailure, reason, map[string]string{"driver_error": reason})
}

func failedValidationEvent(reason string) *api.TaskEvent {
	return newEvent(api.TaskFailedValidation, reason, map[string]string{"validation_error": reason})
}

// hookFailureEvent is the event of a prestart hook's error: the hook's own, or that of a set-up.
func hookFailureEvent(err error) *api.TaskEvent {
	if e, ok := errors.AsType[*interfaces.HookError](err); ok {
		return newEvent(e.Kind, e.Error(), map[string]string{e.Detail: e.Error()})
	}
	return setupFailureEvent(err.Error())
}

func setupFailureEvent(reason string) *api.TaskEvent {
	return newEvent(api.TaskSetupFailure, reason, map[string]string{"setup_error": reason})
}

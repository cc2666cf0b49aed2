package taskrunner

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/restarts"
	"taskapi/internal/same"
)

// TestEventsInNomadsWords: clients match on types, messages and details, as a Nomad agent has shown them.
func TestEventsInNomadsWords(t *testing.T) {
	type details = map[string]string
	for _, tc := range []struct {
		event         *api.TaskEvent
		kind, message string
		details       details
	}{
		{receivedEvent(), "Received", "Task received by client", details{}},
		{setupEvent(), "Task Setup", "Building Task Directory", details{"message": "Building Task Directory"}},
		{startedEvent(nil), "Started", "Task started by client", details{}},
		{startedEvent(details{"no_cgroup": "why"}), "Started", "Task started by client", details{"no_cgroup": "why"}},
		{terminatedEvent(interfaces.ExitResult{}), "Terminated", "Exit Code: 0",
			details{"exit_code": "0", "signal": "0", "oom_killed": "false"}},
		{terminatedEvent(interfaces.ExitResult{ExitCode: 137, Signal: 9, OOMKilled: true}), "Terminated",
			`Exit Code: 137, Signal: 9, Exit Message: "out of memory: give the task more in its resources block, ` +
				`or find what it is used for"`,
			details{"exit_code": "137", "signal": "9", "oom_killed": "true"}},
		{terminatedEvent(interfaces.ExitResult{ExitCode: -1, Err: "lost"}), "Terminated",
			`Exit Code: -1, Exit Message: "lost"`,
			details{"exit_code": "-1", "signal": "0", "oom_killed": "false"}},
		{terminatedEvent(interfaces.ExitResult{ExitCode: 137, Signal: 9, Killed: "late"}), "Terminated",
			`Exit Code: 137, Signal: 9, Exit Message: "late"`,
			details{"exit_code": "137", "signal": "9", "oom_killed": "false"}},
		{restartingEvent(1116265829, restarts.ReasonWithinPolicy), "Restarting", "Task restarting in 1.116265829s",
			details{"start_delay": "1116265829", "restart_reason": "Restart within policy"}},
		{restartingEvent(6800*time.Millisecond, restarts.ReasonDelay), "Restarting",
			"Exceeded allowed attempts, applying a delay - Task restarting in 6.8s",
			details{"start_delay": "6800000000", "restart_reason": "Exceeded allowed attempts, applying a delay"}},
		{restartingEvent(0, ""), "Restarting", "Task restarting in 0s",
			details{"start_delay": "0", "restart_reason": ""}},
		{notRestartingEvent("Policy allows no restarts"), "Not Restarting", "Policy allows no restarts",
			details{"restart_reason": "Policy allows no restarts", "fails_task": "true"}},
		{killingEvent(Graceful, 5*time.Second), "Killing", "Sent interrupt. Waiting 5s before force killing",
			details{"kill_timeout": "5s"}},
		{TenureLostEvent(), "Killing", "Force killing: another machine has taken the allocation over",
			details{"kill_timeout": "0s", "kill_reason": "another machine has taken the allocation over"}},
		{killedEvent(), "Killed", "Task successfully killed", details{}},
		{restartSignaledEvent("User requested task to restart"), "Restart Signaled", "User requested task to restart",
			details{"restart_reason": "User requested task to restart"}},
		{signalingEvent("sighup"), "Signaling", "Task being sent a signal", details{"signal": "sighup"}},
		{SiblingFailedEvent("bad"), "Sibling Task Failed", `Task's sibling "bad" failed`,
			details{"failed_sibling": "bad"}},
		{LeaderDeadEvent(), "Leader Task Dead", "Leader Task in Group dead", details{}},
		{MainTasksDeadEvent(), "Main Tasks Dead", "Main tasks in the group died", details{}},
		{shutdownDelayEvent(3 * time.Second), "Waiting for shutdown delay",
			"Waiting for shutdown_delay of 3s before killing the task.", details{}},
		{driverFailureEvent("no such file"), "Driver Failure", "no such file", details{"driver_error": "no such file"}},
		{failedValidationEvent("bad"), "Failed Validation", "bad", details{"validation_error": "bad"}},
		{setupFailureEvent("bad"), "Setup Failure", "bad", details{"setup_error": "bad"}},
	} {
		if tc.event.Type != tc.kind || tc.event.DisplayMessage != tc.message {
			t.Errorf("got %q: %q, want %q: %q", tc.event.Type, tc.event.DisplayMessage, tc.kind, tc.message)
		}
		same.As(t, tc.details, tc.event.Details, "details of ", tc.kind)
		if fails := tc.kind == "Not Restarting"; tc.event.FailsTask != fails {
			t.Errorf("%s: FailsTask is %v", tc.kind, tc.event.FailsTask)
		}
		same.As(t, "", tc.event.TaskSignal, tc.kind, ": TaskSignal is")
	}
}

// TestTheNewestEventsAreKept, ten of them; what they have said of the task stays.
func TestTheNewestEventsAreKept(t *testing.T) {
	var r record
	at := time.Unix(1000, 0)
	r.add(startedEvent(nil), at)
	for i := range 12 {
		r.add(restartingEvent(0, ""), at.Add(time.Duration(i+1)*time.Second))
	}
	s := r.wire()
	if len(s.Events) != 10 || s.Events[9].Time != at.Add(12*time.Second).UnixNano() {
		t.Errorf("%d events, the latest at %d", len(s.Events), s.Events[len(s.Events)-1].Time)
	}
	if s.Restarts != 12 || !s.LastRestart.Equal(at.Add(12*time.Second)) || !s.StartedAt.Equal(at) {
		t.Errorf("restarts %d, the last at %v; started at %v", s.Restarts, s.LastRestart, s.StartedAt)
	}
}

// TestHowATaskIsShown in each phase, and that it keeps the time of its first death.
func TestHowATaskIsShown(t *testing.T) {
	for p, want := range map[phase]string{
		waiting: "pending", starting: "pending", running: "running", shutdownDelay: "pending", stopping: "running",
		backoff: "pending", dead: "dead",
	} {
		var r record
		r.set(state{phase: p}, time.Unix(1000, 0), nil)
		same.As(t, want, r.wire().State, "in phase ", p, " it is shown as")
	}
	var r record
	for i, p := range []phase{dead, running, dead} {
		r.set(state{phase: p}, time.Unix(int64(i), 0), nil)
	}
	if got := r.wire().FinishedAt; !got.Equal(time.Unix(0, 0)) {
		t.Errorf("finished at %v, want its first death", got)
	}
}

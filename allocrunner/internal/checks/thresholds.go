package checks

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// The states of a check.
const (
	pending = "pending"
	success = "success"
	failure = "failure"
)

// thresholds decide which status a check shows after a run, and whether a restart is due.
type thresholds struct {
	// successes and failures are how many results in a row it takes to show success or failure; below 2 each result
	// counts at once. They are Consul's success_before_passing and failures_before_critical.
	successes, failures int

	// limit is how many runs in a row must find the check unhealthy for a restart; 0 for never. Only runs count that
	// began when what would be restarted had been up for grace. With ignoreWarnings a script's warning does not count.
	limit          int
	grace          time.Duration
	ignoreWarnings bool
}

// defaultGrace is the grace of a check_restart block that does not say it, Nomad's number.
const defaultGrace = time.Second

func thresholdsOf(c *api.ServiceCheck) thresholds {
	t := thresholds{successes: c.SuccessBeforePassing, failures: c.FailuresBeforeCritical}
	if restart := c.CheckRestart; restart != nil {
		t.limit, t.grace, t.ignoreWarnings = restart.Limit, defaultGrace, restart.IgnoreWarnings
		if restart.Grace != nil {
			t.grace = *restart.Grace
		}
	}
	return t
}

// state is the state of a check since its registration.
type state struct {
	status    string    // as shown
	row       int       // how many results in a row equal the latest: positive for successes, negative for failures
	up        time.Time // the start of the tasks that would be restarted; the next two fields count from then
	unhealthy int       // how many runs in a row count towards a restart
	disarmed  bool      // a restart has been requested; there is one for each start
}

// seenUp returns the state for something that has been up since a time. After another start the counters begin
// again.
func (s state) seenUp(since time.Time) state {
	if !since.Equal(s.up) {
		s.up, s.unhealthy, s.disarmed = since, 0, false
	}
	return s
}

// next returns the check's state after a run that began at began, and whether what has been up since up (zero when
// it is not up) must be restarted now.
//
// A run counts towards the restart if it failed, the check is shown as failing, and the run began after the grace that
// follows each start. So a threshold of failures comes first. A run that succeeded ends the row, even if a threshold of
// successes still shows the failure. A pending check counts for nothing: its run ends at its timeout at the latest, and
// says what it is.
func (t thresholds) next(s state, up, began time.Time, o outcome) (_ state, restart bool) {
	s = s.seenUp(up)
	if o.ok {
		s.row = max(s.row, 0) + 1
	} else {
		s.row = min(s.row, 0) - 1
	}
	switch {
	case o.ok && s.row >= t.successes:
		s.status = success
	case !o.ok && -s.row >= t.failures:
		s.status = failure
	}
	switch {
	case o.ok || o.warning && t.ignoreWarnings:
		s.unhealthy = 0
	case s.status == failure && !up.IsZero() && !began.Before(up.Add(t.grace)):
		s.unhealthy++
	}
	if t.limit > 0 && s.unhealthy >= t.limit && !s.disarmed {
		s.disarmed, restart = true, true
	}
	return s, restart
}

// initially returns the status of a check that has not run.
func initially(c *api.ServiceCheck) string {
	switch c.InitialStatus {
	case "passing":
		return success
	case "warning", "critical":
		return failure
	}
	return pending
}

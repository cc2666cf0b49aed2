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

// rules decide what a check's runs lead to: next is a pure function of the standing and of what a run found.
type rules struct {
	// successes and failures are how many results in a row it takes to show success or failure; below 2 each result counts at
	// once. They are Consul's success_before_passing and failures_before_critical.
	successes, failures int

	// limit is how many runs in a row must find the check unhealthy for a restart; 0 for never. Only runs count that began when what
	// would be restarted had been up for grace. With ignoreWarnings a script's warning does not count.
	limit          int
	grace          time.Duration
	ignoreWarnings bool
}

// defaultGrace is the grace of a check_restart block that does not say it, Nomad's number.
const defaultGrace = time.Second

func rulesOf(c *api.ServiceCheck) rules {
	r := rules{successes: c.SuccessBeforePassing, failures: c.FailuresBeforeCritical}
	if restart := c.CheckRestart; restart != nil {
		r.limit, r.grace, r.ignoreWarnings = restart.Limit, defaultGrace, restart.IgnoreWarnings
		if restart.Grace != nil {
			r.grace = *restart.Grace
		}
	}
	return r
}

// standing is where a check stands since its registration.
type standing struct {
	status    string    // as shown
	row       int       // how many results in a row equal the latest: positive for successes, negative for failures
	up        time.Time // since when what would be restarted was up, as last seen; the two below are about what began then
	unhealthy int       // how many runs in a row count towards a restart
	disarmed  bool      // a restart has been requested, once for each start
}

// seenUp returns the standing for what is up since a time: after another start the counters begin again.
func (s standing) seenUp(since time.Time) standing {
	if !since.Equal(s.up) {
		s.up, s.unhealthy, s.disarmed = since, 0, false
	}
	return s
}

// counts reports whether a failure counts towards a restart of what has been up since up, zero when it isn't: the run must have begun
// after the grace that follows each start.
func (r rules) counts(up, began time.Time) bool {
	return !up.IsZero() && !began.Before(up.Add(r.grace))
}

// next returns the standing after a run that began at began, and whether what was up since up must be restarted now.
//
// A run counts towards the restart when it failed and the check is shown as failing, so a threshold of failures comes first; a run
// that succeeded ends the row, even when a threshold of successes still shows the failure. A pending check counts for nothing:
// the end of its run, at the latest at its timeout, says what it is.
func (r rules) next(s standing, up, began time.Time, o outcome) (_ standing, restart bool) {
	s = s.seenUp(up)
	s.row = inRow(s.row, o.ok)
	switch {
	case o.ok && s.row >= r.successes:
		s.status = success
	case !o.ok && -s.row >= r.failures:
		s.status = failure
	}
	switch {
	case o.ok || o.warning && r.ignoreWarnings:
		s.unhealthy = 0
	case s.status == failure && r.counts(up, began):
		s.unhealthy++
	}
	if r.limit > 0 && s.unhealthy >= r.limit && !s.disarmed {
		s.disarmed, restart = true, true
	}
	return s, restart
}

func inRow(row int, ok bool) int {
	if ok {
		return max(row, 0) + 1
	}
	return min(row, 0) - 1
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

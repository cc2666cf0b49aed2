package checks

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// These tests are inside the package: the thresholds are a pure function, and are tested apart from schedules and
// connections here.

// seen is one run as the thresholds get it, since the start of what would be restarted.
type seen struct {
	since time.Duration
	o     outcome
}

// begins is the start that the runs are counted from.
var begins = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestRules(t *testing.T) {
	good, bad, warned := outcome{ok: true}, outcome{}, outcome{warning: true}
	at := func(list ...outcome) (runs []seen) {
		for i, o := range list {
			runs = append(runs, seen{time.Duration(i) * time.Second, o})
		}
		return runs
	}
	for name, c := range map[string]struct {
		thresholds thresholds
		from       string
		runs       []seen
		statuses   string // the first letter of each
		restarts   []int  // the runs that ask for one
	}{
		"each counts": {thresholds{}, pending, at(bad, good, bad), "fsf", nil},
		"one is each": {thresholds{successes: 1, failures: 1}, pending, at(bad, good, bad), "fsf", nil},
		"three to pass": {thresholds{successes: 3}, pending, at(good, good, good, bad, good, good, good),
			"ppsfffs", nil},
		"three to fail": {thresholds{failures: 3}, pending, at(bad, bad, bad, good, bad, bad, good), "ppfssss",
			nil},
		"a row is broken": {thresholds{successes: 2, failures: 2}, pending, at(good, bad, good, bad, bad),
			"ppppf", nil},
		"from an initial status": {thresholds{failures: 2}, success, at(bad, good, bad, bad), "sssf", nil},
		"limit": {thresholds{limit: 2}, pending, at(bad, good, bad, bad, bad, bad), "fsffff",
			[]int{3}},
		"grace": {thresholds{limit: 2, grace: 2 * time.Second}, pending, at(bad, bad, bad, bad),
			"ffff", []int{3}},
		"no limit":           {thresholds{}, pending, at(bad, bad, bad), "fff", nil},
		"shown failing only": {thresholds{limit: 1, failures: 3}, pending, at(bad, bad, bad), "ppf", []int{2}},
		"a success that isn't shown": {thresholds{limit: 2, successes: 2}, pending, at(bad, good, bad, good, bad, bad),
			"ffffff", []int{5}},
		"pending is not unhealthy": {thresholds{limit: 1, successes: 9}, pending, at(good, good), "pp", nil},
		"initially failing":        {thresholds{limit: 1, failures: 2}, failure, at(bad), "f", []int{0}},
		"a warning is a failure":   {thresholds{limit: 1}, pending, at(warned), "f", []int{0}},
		"unless warnings are ignored": {thresholds{limit: 2, ignoreWarnings: true}, pending, at(bad, warned, bad, bad),
			"ffff", []int{3}},
		"ignored, and shown all along": {thresholds{limit: 1, ignoreWarnings: true}, pending, at(warned, warned), "ff", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := state{status: c.from}
			var statuses strings.Builder
			var restarts []int
			for i, run := range c.runs {
				var restart bool
				if s, restart = c.thresholds.next(s, begins, begins.Add(run.since), run.o); restart {
					restarts = append(restarts, i)
				}
				statuses.WriteString(s.status[:1])
			}
			if statuses.String() != c.statuses {
				t.Errorf("statuses %s, want %s", statuses.String(), c.statuses)
			}
			if len(restarts) != len(c.restarts) || len(restarts) > 0 && restarts[0] != c.restarts[0] {
				t.Errorf("restarts at %v, want %v", restarts, c.restarts)
			}
		})
	}
}

// history judges by looking at all runs each time, where the thresholds keep count.
type history struct {
	thresholds thresholds
	from       string
	runs       []seen
	statuses   []string
}

// last returns how many of the latest runs satisfy f, without a gap.
func (h *history) last(f func(i int) bool) int {
	for i := len(h.runs) - 1; i >= 0; i-- {
		if !f(i) {
			return len(h.runs) - 1 - i
		}
	}
	return len(h.runs)
}

func (h *history) add(run seen) {
	h.runs = append(h.runs, run)
	status := h.from
	if n := len(h.statuses); n > 0 {
		status = h.statuses[n-1]
	}
	is := func(ok bool) func(int) bool { return func(i int) bool { return h.runs[i].o.ok == ok } }
	if run.o.ok && h.last(is(true)) >= h.thresholds.successes {
		status = success
	}
	if !run.o.ok && h.last(is(false)) >= h.thresholds.failures {
		status = failure
	}
	h.statuses = append(h.statuses, status)
}

// unhealthy is whether the latest runs are enough for a restart. A run in the grace or before the failure is shown
// neither counts nor breaks the row.
func (h *history) unhealthy() bool {
	row := h.last(func(i int) bool {
		o := h.runs[i].o
		return !o.ok && (!o.warning || !h.thresholds.ignoreWarnings)
	})
	count := 0
	for i := len(h.runs) - row; i < len(h.runs); i++ {
		if h.runs[i].since >= h.thresholds.grace && h.statuses[i] == failure {
			count++
		}
	}
	return h.thresholds.limit > 0 && count >= h.thresholds.limit
}

func TestRulesAgainstHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.IntRange(0, 4)
		h := &history{from: rapid.SampledFrom([]string{pending, success, failure}).Draw(t, "from"), thresholds: thresholds{
			successes: small.Draw(t, "successes"), failures: small.Draw(t, "failures"), limit: small.Draw(t, "limit"),
			grace: time.Duration(small.Draw(t, "grace")) * time.Second, ignoreWarnings: rapid.Bool().Draw(t, "ignore"),
		}}
		s := state{status: h.from}
		requested := false
		for i := range rapid.IntRange(1, 30).Draw(t, "runs") {
			o := rapid.SampledFrom([]outcome{{ok: true}, {}, {warning: true}}).Draw(t, "outcome")
			run := seen{time.Duration(i) * time.Second, o}
			h.add(run)
			var restart bool
			s, restart = h.thresholds.next(s, begins, begins.Add(run.since), o)
			if s.status != h.statuses[i] {
				t.Fatalf("run %d: %s, want %s", i, s.status, h.statuses[i])
			}
			if want := h.unhealthy() && !requested; restart != want {
				t.Fatalf("run %d: restart %v, want %v", i, restart, want)
			}
			requested = requested || restart
		}
	})
}

package checks

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// This test is inside the package: the thresholds are a pure function, and are tested apart from schedules and
// connections here.

// seen is one run as the thresholds get it, since the start of what would be restarted.
type seen struct {
	since time.Duration
	o     outcome
}

// begins is the start that the runs are counted from.
var begins = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

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

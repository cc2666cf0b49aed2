// Package schedule says when a task with a schedule block may run: from each start of its cron block to the end on the
// same day. It reads the block, and knows no task's state. It also says when a cron expression comes next, as Nomad
// reads it.
package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Times are the times at which a task may run. With the zero Times it may always run.
type Times struct {
	start        string // a cron expression with six fields: minute, hour, day, month, day of the week, year
	hour, minute int    // of the end
	location     *time.Location
}

// checkedDays is the number of days whose start and end Parse compares.
const checkedDays = 400

// Parse reads a task's schedule block; nil has the zero Times. Errors: what is wrong with the block, and what would be
// right.
func Parse(block *api.TaskSchedule) (Times, error) {
	if block == nil {
		return Times{}, nil
	}
	if block.Cron == nil {
		return Times{}, errors.New("it must have a cron block, with start and end")
	}
	cron := block.Cron
	t := Times{start: strings.Join(strings.Fields(cron.Start), " ")}
	if strings.Count(t.start, " ") != 5 || strings.ContainsAny(t.start, "/,") {
		return Times{}, fmt.Errorf(`cron start is %q; it must have six fields without "/" and ",": minute, hour, day of the `+
			`month, month, day of the week, year, such as "30 9 * * MON-FRI *"`, cron.Start)
	}
	fields := strings.Fields(cron.End)
	if len(fields) == 2 {
		var errMinute, errHour error
		t.minute, errMinute = strconv.Atoi(fields[0])
		t.hour, errHour = strconv.Atoi(fields[1])
		if errMinute != nil || errHour != nil || t.minute < 0 || t.minute > 59 || t.hour < 0 || t.hour > 23 {
			fields = nil
		}
	}
	if len(fields) != 2 {
		return Times{}, fmt.Errorf(`cron end is %q; it must be a minute and an hour, such as "0 16" for 16:00`, cron.End)
	}
	location, err := time.LoadLocation(cron.Timezone)
	if cron.Timezone == "" {
		location, err = time.Local, nil
	}
	if err != nil {
		return Times{}, fmt.Errorf(`cron timezone is %q; it must be a zone that this machine knows, such as `+
			`"Europe/Berlin", or left out for the machine's own: %w`, cron.Timezone, err)
	}
	t.location = location
	return t, t.check(cron)
}

// check compares the start and the end of days. A day on which clocks change is no error of the schedule.
func (t Times) check(cron *api.TaskScheduleCron) error {
	utc := t
	utc.location = time.UTC
	at, err := utc.next(time.Unix(0, 0))
	if err != nil {
		return fmt.Errorf("cron start: %w", err)
	}
	if at.IsZero() {
		return fmt.Errorf("cron start is %q, which never comes", cron.Start)
	}
	for range checkedDays {
		if at.IsZero() {
			return nil
		}
		if !utc.end(at).After(at) {
			return fmt.Errorf("cron end is %q, which is not after the start at %s: both are on one day; for a time over "+
				"midnight give another timezone", cron.End, at.Format("15:04"))
		}
		at, _ = utc.next(utc.lastSecond(at, 0))
	}
	return nil
}

// Always reports whether the task may run at all times.
func (t Times) Always() bool { return t.location == nil }

// At reports whether the task may run at a time, and when that changes: the zero time for never.
func (t Times) At(now time.Time) (may bool, change time.Time) {
	if t.Always() {
		return true, time.Time{}
	}
	now = now.In(t.location)
	first, err := t.next(t.lastSecond(now, -1)) // of the day
	for range checkedDays {
		if err != nil || first.IsZero() {
			return false, time.Time{}
		}
		switch end := t.end(first); {
		case first.After(now) && end.After(first):
			return false, first
		case end.After(now) && end.After(first):
			return true, end
		}
		after := t.lastSecond(first, 0)
		if !after.After(first) { // the last hour of the day comes twice
			after = first
		}
		first, err = t.next(after)
	}
	return false, time.Time{}
}

// next returns the first start after a time; zero for none.
func (t Times) next(after time.Time) (time.Time, error) {
	at, err := NextCron(t.start, after.In(t.location))
	if !at.After(after) {
		at = time.Time{}
	}
	return at, err
}

// end returns the end of the day of a start.
func (t Times) end(start time.Time) time.Time {
	year, month, day := start.Date()
	return time.Date(year, month, day, t.hour, t.minute, 0, 0, t.location)
}

// lastSecond returns the last second of the day that is a number of days after a time's day. In some zones, days begin
// without a midnight when clocks change.
func (t Times) lastSecond(of time.Time, days int) time.Time {
	year, month, day := of.Date()
	return time.Date(year, month, day+days, 23, 59, 59, 0, t.location)
}

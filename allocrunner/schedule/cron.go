package schedule

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// NextCron returns the first time after a time at which a cron expression comes, in that time's zone; zero for none.
// The result is that of Nomad's api package, except around days that begin without a midnight because clocks change, as
// in America/Havana. Around such a day, that package (cronexpr v1.1.3) may search for ever. NextCron then reads only
// the clock on the wall: a time that it leaves out does not come, and a time that it shows twice comes once.
func NextCron(expression string, after time.Time) (time.Time, error) {
	wall, err := nextCron(expression, shown(after, time.UTC))
	if err != nil || wall.IsZero() {
		return time.Time{}, err
	}
	if daysBegin(after, wall) {
		return nextCron(expression, after)
	}
	for !wall.IsZero() && err == nil {
		at := shown(wall, after.Location())
		if shown(at, time.UTC).Equal(wall) && at.After(after) {
			return at, nil
		}
		wall, err = nextCron(expression, wall)
	}
	return time.Time{}, err
}

func nextCron(expression string, after time.Time) (time.Time, error) {
	kind := api.PeriodicSpecCron
	return (&api.PeriodicConfig{Spec: &expression, SpecType: &kind}).Next(after)
}

// shown returns the time at which a clock in a zone shows the date and time of t. If the clock never shows them, the
// result is a time nearby.
func shown(t time.Time, zone *time.Location) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day, t.Hour(), t.Minute(), t.Second(), 0, zone)
}

// daysBegin reports whether each day, from the day of from to the day after wall, begins with a midnight in from's
// zone.
func daysBegin(from, wall time.Time) bool {
	year, month, day := from.Date()
	for ; ; day++ {
		midnight := time.Date(year, month, day, 0, 0, 0, 0, from.Location())
		if midnight.Hour() != 0 || midnight.Minute() != 0 {
			return false
		}
		if shown(midnight, time.UTC).After(wall) {
			return true
		}
	}
}

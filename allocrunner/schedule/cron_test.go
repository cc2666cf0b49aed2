package schedule_test

import (
	"testing"
	"time"

	"taskapi/allocrunner/schedule"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestNextCron comes to an end in zones whose days may begin without a midnight, and is what a clock on the wall shows.
func TestNextCron(t *testing.T) {
	for _, c := range []struct{ expression, zone, after, want string }{
		// the Sunday on which summer begins at midnight, so that the day begins at 01:00
		{"15 1 * * SUN *", "America/Havana", "2012-03-26T00:00:00Z", "2012-04-01T05:15:00Z"},
		{"0 0 * * SUN *", "America/Havana", "2012-03-26T00:00:00Z", "2012-04-08T04:00:00Z"},
		{"0 0 1 * *", "America/Havana", "2012-03-05T00:00:00Z", "2012-05-01T04:00:00Z"},
		{"*/20 * * * *", "America/Havana", "2012-04-01T04:45:00Z", "2012-04-01T05:00:00Z"},
		{"30 0 * * *", "America/Havana", "2012-11-04T04:00:00Z", "2012-11-04T04:30:00Z"}, // which comes twice
		{"0 9 * * *", "Europe/Berlin", "2026-03-28T08:30:00Z", "2026-03-29T07:00:00Z"},
		{"0 9 * * * 2020", "America/Havana", "2026-03-28T08:30:00Z", ""},
	} {
		zone := must.Get(time.LoadLocation(c.zone))(t)
		after, _ := time.Parse(time.RFC3339, c.after)
		want, _ := time.Parse(time.RFC3339, c.want)
		if got, err := schedule.NextCron(c.expression, after.In(zone)); err != nil || !got.Equal(want) {
			t.Errorf("%q in %s after %s: %s, %v, want %s", c.expression, c.zone, c.after, got.UTC(), err, c.want)
		}
	}
	same.Fails(t, same.Err(schedule.NextCron("99 * * * *", time.Now())), "a minute 99 is no error")
}

// TestNextGoesOn: each time comes after the one before, for years, and around each change of the clocks.
func TestNextGoesOn(t *testing.T) {
	for _, name := range []string{"America/Havana", "Asia/Gaza", "Africa/Cairo", "America/Santiago", "Asia/Beirut"} {
		zone := must.Get(time.LoadLocation(name))(t)
		begin, end := time.Date(2012, 1, 1, 0, 0, 0, 0, zone), time.Date(2028, 1, 1, 0, 0, 0, 0, zone)
		goesOn := func(expression string, at time.Time, times int) {
			for ; times > 0 && at.Before(end); times-- {
				next, err := schedule.NextCron(expression, at)
				if err != nil || !next.After(at) {
					t.Fatalf("%q in %s after %s: %s, %v", expression, name, at, next, err)
				}
				at = next
			}
		}
		goesOn("15 1 1 * *", begin, 1000)
		goesOn("0 0 29 3 *", begin, 1000)
		for _, change := begin.ZoneBounds(); change.Before(end) && !change.IsZero(); _, change = change.ZoneBounds() {
			goesOn("30 2 * * *", change.AddDate(0, 0, -3), 6)
			goesOn("0 0 * * SUN", change.AddDate(0, 0, -15), 4)
		}
	}
}

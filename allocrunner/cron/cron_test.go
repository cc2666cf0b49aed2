package cron_test

import (
	"testing"
	"time"

	"taskapi/allocrunner/cron"
	"taskapi/internal/must"
)

// TestNext comes to an end in zones whose days may begin without a midnight, and is what a clock on the wall shows.
func TestNext(t *testing.T) {
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
		zone, err := time.LoadLocation(c.zone)
		must.OK(t, err)
		after, _ := time.Parse(time.RFC3339, c.after)
		want, _ := time.Parse(time.RFC3339, c.want)
		if got, err := cron.Next(c.expression, after.In(zone)); err != nil || !got.Equal(want) {
			t.Errorf("%q in %s after %s: %s, %v, want %s", c.expression, c.zone, c.after, got.UTC(), err, c.want)
		}
	}
	if _, err := cron.Next("99 * * * *", time.Now()); err == nil {
		t.Error("a minute 99 is no error")
	}
}

// TestNextGoesOn: each time comes after the one before, for years.
func TestNextGoesOn(t *testing.T) {
	for _, name := range []string{"America/Havana", "Asia/Gaza", "Africa/Cairo", "America/Santiago", "Asia/Beirut"} {
		zone, err := time.LoadLocation(name)
		must.OK(t, err)
		for _, expression := range []string{"0 0 * * SUN", "15 1 1 * *", "30 2 * * *", "0 0 29 3 * *"} {
			at := time.Date(2012, 1, 1, 0, 0, 0, 0, zone)
			for at.Year() < 2028 {
				next, err := cron.Next(expression, at)
				if err != nil || !next.After(at) {
					t.Fatalf("%q in %s after %s: %s, %v", expression, name, at, next, err)
				}
				at = next
			}
		}
	}
}

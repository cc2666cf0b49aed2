package schedule_test

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/schedule"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func parse(start, end, zone string) (schedule.Times, error) {
	return schedule.Parse(&api.TaskSchedule{Cron: &api.TaskScheduleCron{Start: start, End: end, Timezone: zone}})
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ start, end, zone, want string }{
		{"30 9 * * *", "0 16", "", "six fields"},
		{"30 9 * * MON,TUE *", "0 16", "", "six fields"},
		{"*/5 9 * * * *", "0 16", "", "six fields"},
		{"", "0 16", "", "six fields"},
		{"99 9 * * * *", "0 16", "", "cron start"},
		{"0 9 31 2 * *", "0 16", "", "never comes"},
		{"0 9 * * * *", "16", "", "a minute and an hour"},
		{"0 9 * * * *", "60 16", "", "a minute and an hour"},
		{"0 9 * * * *", "* 16", "", "a minute and an hour"},
		{"0 9 * * * *", "0 9", "", "not after the start at 09:00"},
		{"0 22 * * * *", "0 6", "", "another timezone"},
		{"0 9 * * * *", "0 16", "Mars/Olympus", "timezone"},
	} {
		same.Says(t, nil, c.want, same.Err(parse(c.start, c.end, c.zone)), c.start, " to ", c.end, " in ", c.zone)
	}
	same.Says(t, nil, "cron block", same.Err(schedule.Parse(&api.TaskSchedule{})), "without a cron block")
	if times, err := schedule.Parse(nil); err != nil || !times.Always() {
		t.Errorf("without a schedule: %v", err)
	}
}

func TestAt(t *testing.T) {
	for _, c := range []struct {
		start, end, zone string
		now              string
		may              bool
		change           string
	}{
		{"30 9 * * MON-FRI *", "0 16", "UTC", "2026-11-26T09:29:59Z", false, "2026-11-26T09:30:00Z"},
		{"30 9 * * MON-FRI *", "0 16", "UTC", "2026-11-26T09:30:00Z", true, "2026-11-26T16:00:00Z"},
		{"30 9 * * MON-FRI *", "0 16", "UTC", "2026-11-26T15:59:59Z", true, "2026-11-26T16:00:00Z"},
		{"30 9 * * MON-FRI *", "0 16", "UTC", "2026-11-27T16:00:00Z", false, "2026-11-30T09:30:00Z"}, // a Friday
		{"30 9 * * MON-FRI *", "0 16", "America/New_York", "2026-11-26T20:59:00Z", true, "2026-11-26T21:00:00Z"},
		{"0 9-11 * * * *", "30 11", "UTC", "2026-11-26T11:15:00Z", true, "2026-11-26T11:30:00Z"}, // the first start holds
		{"0 9 * * * 2020", "0 16", "UTC", "2026-11-26T12:00:00Z", false, ""},
		// Summer begins: 02:00 to 03:00 is left out, and a start in between does not come. It
		// ends: 02:00 to 03:00 comes twice.
		{"0 1 * * * *", "30 2", "Europe/Berlin", "2026-03-29T00:30:00Z", true, ""},
		{"30 2 * * * *", "0 5", "Europe/Berlin", "2026-03-29T01:30:00Z", false, "2026-03-30T00:30:00Z"},
		{"0 9 * * * *", "0 17", "Europe/Berlin", "2026-03-29T06:59:59Z", false, "2026-03-29T07:00:00Z"},
		{"0 9 * * * *", "0 17", "Europe/Berlin", "2026-10-25T07:59:59Z", false, "2026-10-25T08:00:00Z"},
		{"0 1 * * * *", "0 4", "Europe/Berlin", "2026-10-24T23:00:00Z", true, "2026-10-25T03:00:00Z"},
	} {
		times := must.Get(parse(c.start, c.end, c.zone))(t)
		now, _ := time.Parse(time.RFC3339, c.now)
		want, _ := time.Parse(time.RFC3339, c.change)
		may, change := times.At(now)
		if may != c.may || c.change != "" && !change.Equal(want) {
			t.Errorf("%q to %q in %s at %s: %v until %s, want %v until %s", c.start, c.end, c.zone, c.now, may,
				change.UTC(), c.may, c.change)
		}
	}
}

// TestAtGoesOn: each change comes after the time before it, and is one, around each change of the clocks.
func TestAtGoesOn(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Africa/Cairo", "UTC"} {
		for _, start := range []string{"0 0 * * * *", "30 2 * * * *", "15 1 * * SUN *", "* * * * * *"} {
			times := must.Get(parse(start, "59 23", zone))(t)
			location := must.Get(time.LoadLocation(zone))(t)
			end := time.Date(2027, 1, 1, 0, 0, 0, 0, location)
			for clocks := time.Date(2026, 1, 1, 0, 0, 0, 0, location); clocks.Before(end) && !clocks.IsZero(); {
				was, change := times.At(clocks.AddDate(0, 0, -10))
				for range 24 {
					before, _ := times.At(change.Add(-time.Second))
					is, next := times.At(change)
					if before != was || is == was || !next.After(change) {
						t.Fatalf("%s from %q: %v before %s, then %v until %s", zone, start, before, change, is, next)
					}
					was, change = is, next
				}
				_, clocks = clocks.ZoneBounds()
			}
		}
	}
}

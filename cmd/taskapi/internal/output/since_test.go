package output_test

import (
	"testing"
	"time"

	"taskapi/cmd/taskapi/internal/output"
)

func TestParseSince(t *testing.T) {
	zone := time.FixedZone("east", 2*60*60)
	now := time.Date(2026, 3, 2, 10, 30, 0, 0, zone)
	for text, want := range map[string]time.Time{
		"90s":                  now.Add(-90 * time.Second),
		"1h30m":                now.Add(-90 * time.Minute),
		"3d":                   now.AddDate(0, 0, -3),
		"10:15":                now.Add(-15 * time.Minute),
		"10:29:58":             now.Add(-2 * time.Second),
		"10:31":                now.Add(time.Minute).AddDate(0, 0, -1),
		"2026-03-01":           time.Date(2026, 3, 1, 0, 0, 0, 0, zone),
		"2026-03-01 08:00":     time.Date(2026, 3, 1, 8, 0, 0, 0, zone),
		"2026-03-01 08:00:05":  time.Date(2026, 3, 1, 8, 0, 5, 0, zone),
		"2026-03-01T08:00:05Z": time.Date(2026, 3, 1, 8, 0, 5, 0, time.UTC),
	} {
		if got, err := output.ParseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "-5m", "-1d", "25:00", "10", "2026-13-01"} {
		if got, err := output.ParseSince(text, now); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

package output

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

var errSince = errors.New("give a duration such as 90s, 10m, 2h or 3d, or a time such as 15:04, 15:04:05, " +
	`2006-01-02, "2006-01-02 15:04:05" or 2006-01-02T15:04:05Z`)

// ParseSince reads a time in the past: a duration before now, or a date, a time of day or both, in now's zone unless it
// names another. A time of day is the latest that is not after now.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil {
		if d < 0 {
			return time.Time{}, errSince
		}
		return now.Add(-d), nil
	}
	for _, format := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04",
		time.DateOnly} {
		if t, err := time.ParseInLocation(format, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, format := range []string{"15:04:05", "15:04"} {
		t, err := time.ParseInLocation(time.DateOnly+" "+format, now.Format(time.DateOnly)+" "+text, now.Location())
		if err != nil {
			continue
		}
		if t.After(now) {
			t = t.AddDate(0, 0, -1)
		}
		return t, nil
	}
	return time.Time{}, errSince
}

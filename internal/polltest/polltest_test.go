package polltest

import (
	"testing"
	"time"

	"taskapi/internal/same"
)

// TestDeadline grows with the processes that want each CPU.
func TestDeadline(t *testing.T) {
	for loads, want := range map[string]time.Duration{
		"":                            shortest,
		"0.20 0.06 0.36 1/200 4711\n": shortest,
		"2.00 0.06 0.36 1/200 4711\n": shortest,
		"4.00 0.06 0.36 1/200 4711\n": 2 * shortest,
		"90.0 0.06 0.36 1/200 4711\n": longest,
	} {
		same.As(t, want, deadline(loads, 2), loads)
	}
}

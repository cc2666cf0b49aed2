// Package polltest waits for what tells a test nothing when it changes: another process's files, or a counter. Only
// tests may import it.
package polltest

import "time"

// deadline is for what takes milliseconds, and seconds on a busy machine.
const deadline = 4 * time.Minute

// Until looks again and again until a condition holds, after pauses that grow to 20 milliseconds. It returns false at
// the deadline.
func Until(holds func() bool) bool {
	give := time.Now().Add(deadline)
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(give) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

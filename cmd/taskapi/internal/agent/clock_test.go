package agent

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// setOffset has adjtimex(2) step the clock by so many nanoseconds: ADJ_SETOFFSET, ADJ_NANO.
const setOffset = 0x100 | 0x2000

// TestWatchClock hears of each time that the clock is set, here by a nanosecond.
func TestWatchClock(t *testing.T) {
	heard, ended := make(chan bool, 1), make(chan error, 1)
	ctx, end := context.WithCancel(t.Context())
	go func() {
		ended <- watchClock(ctx, func() {
			select {
			case heard <- true:
			default:
			}
		})
	}()
	back := unix.Timex{Modes: setOffset, Time: unix.Timeval{Sec: -1, Usec: 1e9 - 1}}
	for _, by := range []unix.Timex{{Modes: setOffset, Time: unix.Timeval{Usec: 1}}, back} {
		select {
		case <-heard: // of a step that somebody else made
		default:
		}
		for set, give := false, time.Now().Add(10*time.Second); !set && time.Now().Before(give); { // until it listens
			step := by
			if _, err := unix.Adjtimex(&step); err != nil {
				t.Skip("may not set the clock:", err)
			}
			select {
			case set = <-heard:
			case <-time.After(time.Millisecond):
			}
			if !set && time.Now().Add(time.Millisecond).After(give) {
				t.Fatal("nothing was heard of it")
			}
		}
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

package taskrunner

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
)

// DefaultKillSignal is what a task gets that names no kill_signal: Nomad's default for every driver.
const DefaultKillSignal = syscall.SIGINT

// ParseSignal reads a signal's name as signal(7) spells it, with or without SIG, in any case. SIGNULL is signal 0, which asks
// whether the process is there. Numbers, blanks and real-time signals are no names. Errors: interfaces.ErrUnknownSignal.
func ParseSignal(name string) (syscall.Signal, error) {
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if full == "SIGNULL" {
		return 0, nil
	}
	if sig := unix.SignalNum(full); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("%w %q", interfaces.ErrUnknownSignal, name)
}

// Package signals reads the names of signals, as people write them in requests and in job files.
package signals

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrUnknown is the error for a name that no signal has on this machine.
var ErrUnknown = errors.New("unknown signal")

// Common are the signals that a person is likely to send.
var Common = []string{"SIGABRT", "SIGALRM", "SIGCONT", "SIGHUP", "SIGINT", "SIGKILL", "SIGQUIT", "SIGSTOP", "SIGTERM",
	"SIGUSR1", "SIGUSR2", "SIGWINCH"}

// Parse reads a signal's name as signal(7) spells it, with or without SIG, in any case. SIGNULL is signal 0, which asks
// whether the process is there. Numbers, blanks and real-time signals are no names. Errors: ErrUnknown.
func Parse(name string) (syscall.Signal, error) {
	full := fullName(name)
	if full == "SIGNULL" {
		return 0, nil
	}
	if sig := unix.SignalNum(full); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("%w %q: give a name, such as %s", ErrUnknown, name, strings.Join(Common, ", "))
}

func fullName(name string) string { return "SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG") }

// jobFile are the names that Nomad takes in a job file, without SIG.
var jobFile = strings.Fields(
	`ABRT ALRM BUS CONT FPE HUP ILL INT IO IOT KILL PIPE PROF QUIT SEGV STOP SYS TERM TRAP TSTP TTIN TTOU
	USR1 USR2 WINCH XCPU XFSZ`)

// InJobFile reports whether Nomad takes the name in a job file. Parse does, too, then.
func InJobFile(name string) bool {
	return slices.Contains(jobFile, strings.TrimPrefix(fullName(name), "SIG"))
}

package processes

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unignore keeps signals that this program ignores from being ignored in tasks. Most are caught, and swallowed, from
// here on: exec sets a caught signal back to its default, an ignored one not.
func (s *starter) unignore() {
	for _, sig := range ignoredSignals() {
		if sig >= firstReserved && sig <= lastReserved {
			setDefault(sig)
			continue
		}
		signal.Notify(s.swallow, sig)
	}
}

// The signals that Go's runtime leaves to the C library and lets nobody catch: see the signal table in its
// sigtab_linux_generic.go.
const (
	firstReserved syscall.Signal = 32
	lastReserved  syscall.Signal = 34
)

// setDefault gives a signal its default action, for the whole program. Nobody sends it, and the C library, where there
// is one, has its own handler in place of what is ignored.
func setDefault(sig syscall.Signal) {
	var action [4]uint64 // struct sigaction of the kernel on 64-bit machines: SIG_DFL is 0, as are its flags and mask
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0,
		unsafe.Sizeof(action[3]), 0, 0)
}

// ignoredSignals returns those that this program ignores, mostly because its parent did (nohup, a shell's background
// job).
func ignoredSignals() []syscall.Signal {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return nil
	}
	var found []syscall.Signal
	for line := range strings.Lines(string(status)) {
		hex, ok := strings.CutPrefix(line, "SigIgn:")
		if !ok {
			continue
		}
		mask, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		for n := range 64 {
			if mask>>n&1 == 1 {
				found = append(found, syscall.Signal(n+1))
			}
		}
	}
	return found
}

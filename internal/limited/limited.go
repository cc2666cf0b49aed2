// Package limited gives a process of this program limits, and says why such a process has ended. The kernel enforces
// the limits, since Go can stop neither a loop nor an allocation.
package limited

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits are what a process may take.
type Limits struct {
	Memory  uint64 // bytes that it may write to. Go takes some 100 MB of them for a few megabytes.
	Seconds uint64 // of all processors together, so that a busy machine ends no process
}

// Set gives this process the limits, and more of setrlimit(2). What it starts has them, too. A lower limit that it has
// already stays.
func (l Limits) Set(more map[int]uint64) error {
	err := errors.Join(set(unix.RLIMIT_DATA, l.Memory), set(unix.RLIMIT_CPU, l.Seconds), set(unix.RLIMIT_CORE, 0))
	for what, most := range more {
		err = errors.Join(err, set(what, most))
	}
	return err
}

func set(what int, most uint64) error {
	var is unix.Rlimit
	if err := unix.Getrlimit(what, &is); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	most = min(most, is.Max)
	return os.NewSyscallError("setrlimit", unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}))
}

// Exceeded says beyond which limit a process went that has ended with some words on its standard error; empty if it
// ended for another reason.
func (l Limits) Exceeded(ended *os.ProcessState, words *Words) string {
	said := words.String()
	switch {
	case strings.Contains(said, "out of memory"), strings.Contains(said, "cannot allocate memory"),
		strings.Contains(said, "Resource temporarily unavailable"), // no memory for another thread
		strings.HasPrefix(said, "SIGSEGV"):                         // the runtime got no memory at a bad moment
		return fmt.Sprintf("%d MiB of memory", l.Memory>>20)
	// The kernel sends a SIGKILL, and measures the time in another way than the times that a process has used.
	case ended != nil && !ended.Exited() && ended.UserTime()+ended.SystemTime() >= time.Duration(l.Seconds)*time.Second/2:
		return fmt.Sprintf("%d seconds of processor time", l.Seconds)
	}
	return ""
}

// most is how many bytes Words keeps. Go's runtime says first why a program ends, and then where.
const most = 4 << 10

// Words keeps the first bytes of what a process writes to its standard error.
type Words struct{ bytes.Buffer }

// Write takes all bytes, and never fails.
func (w *Words) Write(p []byte) (int, error) {
	w.Buffer.Write(p[:min(len(p), max(0, most-w.Len()))])
	return len(p), nil
}

package taskrunner

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"taskapi/allocrunner/drivers"
)

// TestWhichFailedStartIsTheLast: a task is started again under its restart policy unless no start can ever succeed.
func TestWhichFailedStartIsTheLast(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		last bool
	}{
		"config":      {&drivers.ConfigError{Err: errors.New("command is missing")}, true},
		"driver":      {&drivers.StartError{Reason: "no mounts", Err: errors.ErrUnsupported}, true},
		"file system": {fmt.Errorf("start: %w", &drivers.StartError{Reason: "no", Err: syscall.ENOTSUP}), false},
		"kernel":      {&drivers.StartError{Reason: "no", Err: syscall.ENOSYS}, false},
		"program":     {&drivers.StartError{Reason: "not found", Err: syscall.ENOENT}, false},
		"other":       {errors.New("other"), false},
	} {
		if got := driverFailure(c.err); got.unrecoverable != c.last {
			t.Errorf("%s: it is the last start: %v, want %v", name, got.unrecoverable, c.last)
		}
	}
}

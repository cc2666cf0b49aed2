package signals_test

import (
	"errors"
	"syscall"
	"testing"

	"taskapi/internal/same"
	"taskapi/internal/signals"
)

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		name    string
		want    syscall.Signal
		known   bool
		jobFile bool
	}{
		{"SIGHUP", syscall.SIGHUP, true, true},
		{"hup", syscall.SIGHUP, true, true},
		{"sigUsr1", syscall.SIGUSR1, true, true},
		{"SIGCHLD", syscall.SIGCHLD, true, false}, // Nomad's job files don't take it
		{"SIGNULL", 0, true, false},
		{"SIGNOPE", 0, false, false},
		{"SIGSIGHUP", 0, false, false},
		{" SIGHUP", 0, false, false},
		{"SIG", 0, false, false},
		{"1", 0, false, false},
		{"SIGRTMIN", 0, false, false},
		{"", 0, false, false},
	} {
		got, err := signals.Parse(tc.name)
		if got != tc.want || (err == nil) != tc.known || err != nil && !errors.Is(err, signals.ErrUnknown) {
			t.Errorf("%q: %v, %v", tc.name, got, err)
		}
		same.As(t, tc.jobFile, signals.InJobFile(tc.name), tc.name, " in a job file")
	}
}

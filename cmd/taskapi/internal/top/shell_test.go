package top

import (
	"testing"

	"taskapi/internal/same"
)

// TestIsShell: what other commands have written stays in sight until Enter is pressed, whatever they are called.
func TestIsShell(t *testing.T) {
	for line, want := range map[string]bool{
		"/bin/sh": true, "bash": true, "/usr/local/bin/fish": true,
		"flush": false, "/opt/refresh": false, "sh -c date": false, "/bin/sh.old": false, "": false,
	} {
		same.As(t, want, isShell(line), "isShell(", line, ")")
	}
}

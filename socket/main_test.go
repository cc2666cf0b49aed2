package socket_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain also is what the tests start as another process.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		unix.Exit(playRole(role)) // os.Exit would let the race detector sleep for a second
	}
	goleak.VerifyTestMain(m)
}

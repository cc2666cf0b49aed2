package socket_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain also is what the tests start as another process.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(playRole(role))
	}
	goleak.VerifyTestMain(m)
}

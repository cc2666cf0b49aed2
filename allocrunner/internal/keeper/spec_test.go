package keeper_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/keeper"
)

// TestWhatAKeeperCantGiveIsRefused, and not left out: a task that wants it would run without.
func TestWhatAKeeperCantGiveIsRefused(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	for want, edit := range map[string]func(*drivers.Spec){
		"mounts":          func(s *drivers.Spec) { s.Mounts = []interfaces.Mount{{HostPath: "/etc", TaskPath: "/etc"}} },
		"devices":         func(s *drivers.Spec) { s.Devices = []interfaces.Device{{HostPath: "/dev/null", TaskPath: "/dev/null"}} },
		"resource limits": func(s *drivers.Spec) { s.Limits.PIDs = 1 },
		"namespaces":      func(s *drivers.Spec) { s.Namespaces = []drivers.Namespace{{Kind: "net"}} },
	} {
		spec := shell(dir, "t", "true")
		edit(&spec)
		_, err := c.Start(t.Context(), spec)
		if e, ok := errors.AsType[*drivers.StartError](err); !ok || !strings.Contains(e.Reason, want) || !errors.Is(err, unix.ENOTSUP) {
			t.Errorf("%s: got %v, want a *StartError of what is lacking", want, err)
		}
	}
}

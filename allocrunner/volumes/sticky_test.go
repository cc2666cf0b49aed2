package volumes_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/volumes"
	"taskapi/internal/must"
)

// lifecycle notes the events of a task.
type lifecycle struct {
	interfaces.TaskLifecycle
	events []string
}

func (l *lifecycle) Event(_, message string) { l.events = append(l.events, message) }

// TestStickyOwners: an event names a file of another user, and no file behind a link that a task has put in the place
// of its directory.
func TestStickyOwners(t *testing.T) {
	group := &api.TaskGroup{Name: new("g"), EphemeralDisk: &api.EphemeralDisk{Sticky: new(true)}}
	alloc := &api.Allocation{TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{group}}}
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "local")
	must.OK(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	must.OK(t, os.Symlink(dir, link))
	hook := volumes.Sticky(alloc)[0].(interfaces.TaskPrestartHook)
	for local, want := range map[string]int{dir: 1, link: 0} {
		var l lifecycle
		_, err := hook.Prestart(t.Context(), &interfaces.TaskPrestartRequest{Alloc: alloc, Lifecycle: &l,
			Dir:  interfaces.TaskDir{LocalDir: local, SharedDir: t.TempDir()},
			User: interfaces.User{UID: uint32(os.Getuid()) + 1}})
		must.OK(t, err)
		if len(l.events) != want {
			t.Errorf("%s: got events %q, want %d", local, l.events, want)
		}
	}
}

package volumes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// Sticky returns the hooks of a task with sticky data.
func Sticky(alloc *api.Allocation) []interfaces.TaskHook {
	if !interfaces.Sticky(alloc) {
		return nil
	}
	return []interfaces.TaskHook{stickyHook{}}
}

// stickyHook says in an event that sticky data belong to a user whom the task had before.
type stickyHook struct{}

var _ interfaces.TaskPrestartHook = stickyHook{}

func (stickyHook) Name() string { return "sticky" }

func (stickyHook) Prestart(
	_ context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	if req.Restored || req.User.UID == 0 {
		return nil, nil
	}
	mine, self := req.User.UID, uint32(os.Geteuid())
	left := entryOf(req.Dir.LocalDir, func(owner uint32) bool { return owner != mine })
	if left == "" && mine != self && !slices.ContainsFunc(req.Alloc.GetTaskGroup().Tasks, func(t *api.Task) bool {
		return t.User != "" // it may write as this program's user
	}) {
		left = entryOf(filepath.Join(req.Dir.SharedDir, "data"), func(owner uint32) bool { return owner == self })
	}
	if left != "" {
		req.Lifecycle.Event("Sticky Data", fmt.Sprintf("%s belongs to another user, whom the task had before: user %q may "+
			"not be able to change it; stop the allocation and 'chown -R %d' the task's data, or run the job as before",
			left, req.User.Name, mine))
	}
	return nil, nil
}

// mostEntries bounds how many entries of a directory entryOf looks at.
const mostEntries = 1000

// entryOf returns the path of an entry of a directory with such an owner, empty for none.
func entryOf(dir string, is func(owner uint32) bool) string {
	f, err := os.OpenFile(dir, syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0) // the task may exchange it
	if err != nil {
		return ""
	}
	defer f.Close()
	entries, _ := f.ReadDir(mostEntries) // what can't be read is not said
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && is(info.Sys().(*syscall.Stat_t).Uid) {
			return filepath.Join(dir, e.Name())
		}
	}
	return ""
}

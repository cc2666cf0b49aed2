package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

// destroyHook counts its calls.
type destroyHook struct{ calls int }

func (*destroyHook) Name() string                    { return "destroy" }
func (h *destroyHook) Destroy(context.Context) error { h.calls++; return nil }

// TestDestroyRunsTheHooks of an agent beside others, without the files that those of the agent open when it runs.
func TestDestroyRunsTheHooks(t *testing.T) {
	const id = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"
	dir := datadir.Dir(t.TempDir())
	lock, err := dir.Lock(id, dir.Store("1"), slog.New(slog.DiscardHandler))
	must.OK(t, err)
	defer lock.Close()
	group, job := "g", "ended"
	alloc := &api.Allocation{ID: id, TaskGroup: group, ClientStatus: api.AllocClientStatusComplete,
		Job: &api.Job{ID: &job, TaskGroups: []*api.TaskGroup{{Name: &group}}}}
	err = errors.Join(lock.State().Put(interfaces.Saved{Alloc: alloc, Terminal: true}), lock.Reload())
	must.OK(t, err)
	var hook destroyHook
	hooks := Hooks(Config{
		Settings: DefaultSettings(), Lock: lock, Dir: dir, ID: id, Logger: slog.New(slog.DiscardHandler),
	})
	if len(hooks) == 0 {
		t.Fatal("an agent gives its runner no hooks")
	}
	if err := lock.Destroy(t.Context(), append(hooks, &hook)...); err != nil || hook.calls != 1 {
		t.Errorf("the destroy hook ran %d times: %v", hook.calls, err)
	}
	if _, err := os.Stat(lock.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v; want it removed", err)
	}
}

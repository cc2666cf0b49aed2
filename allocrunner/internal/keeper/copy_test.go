package keeper_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// copyDir copies a directory in which a keeper may be writing: the copy is made again when a file of it went meanwhile.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	for tries := 0; ; tries++ {
		out, err := exec.Command("cp", "-a", "-T", from, to).CombinedOutput()
		if err == nil {
			return
		}
		if tries == 100 || !strings.Contains(string(out), "No such file or directory") {
			t.Fatalf("%v: %s", err, out)
		}
		must.OK(t, os.RemoveAll(to))
	}
}

// TestACopy of a directory touches no process of the one that it was made of, and is used once that one's keeper has
// ended.
func TestACopy(t *testing.T) {
	ways := map[string]func(cfg keeper.Config) error{
		"attach": func(cfg keeper.Config) error { _, err := keeper.Attach(t.Context(), cfg.Dir); return err },
		"open":   func(cfg keeper.Config) error { _, _, err := keeper.Open(t.Context(), cfg); return err },
		"supervise": func(cfg keeper.Config) error {
			_, err := keeper.Supervise(t.Context(), cfg, true)
			return err
		},
		"sweep": func(cfg keeper.Config) error { _, err := keeper.Sweep(t.Context(), cfg); return err },
		"end":   func(cfg keeper.Config) error { _, err := keeper.End(t.Context(), cfg); return err },
		"left":  func(cfg keeper.Config) error { _, err := keeper.Left(cfg); return err },
	}
	for name, place := range map[string]func(t *testing.T, dir string) (original, copied string){
		"beside": func(t *testing.T, dir string) (string, string) {
			copyDir(t, dir, dir+".copy")
			return dir, dir + ".copy"
		},
		"in its place": func(t *testing.T, dir string) (string, string) {
			must.OK(t, os.Rename(dir, dir+".old"))
			copyDir(t, dir+".old", dir)
			return dir + ".old", dir
		},
		"without the socket": func(t *testing.T, dir string) (string, string) {
			copyDir(t, dir, dir+".copy")
			wipe(t, dir+".copy", "keeper.sock")
			return dir, dir + ".copy"
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "alloc")
			wipe(t, dir)
			b := begin(t, dir)
			detach(t, b.Client)
			original, copied := place(t, dir)
			cfg := keeper.Config{Dir: copied, Marker: mark(copied)}
			for way, do := range ways {
				err := do(cfg)
				isCopy, ok := errors.AsType[*keeper.CopyError](err)
				if !ok || isCopy.Dir != copied || isCopy.PID != b.Keeper().PID || isCopy.Of != dir && isCopy.Of != original {
					t.Errorf("%s: %v", way, err)
				}
			}
			if keeper.Busy(copied) {
				t.Error("tasks of the copy are said to run")
			}
			if !b.Keeper().Runs() || !b.task.Runs() || !b.child.Runs() {
				t.Fatal("the original's processes were hurt")
			}
			if !keeper.Busy(original) {
				t.Error("the original's tasks are said not to run")
			}
			again := attach(t, original) // also where it has been moved
			if again.Keeper() != b.Keeper() {
				t.Errorf("attached to %v, want %v", again.Keeper(), b.Keeper())
			}
			must.OK(t, again.Close())
			next := start(t, cfg)
			list, err := next.List(t.Context())
			if err != nil || len(list) != 1 || list[0].Exit == nil {
				t.Errorf("%+v, %v; want the task, which was lost", list, err)
			}
		})
	}
}

// TestACopyInTheOriginalsPlace is not said to be a copy of itself.
func TestACopyInTheOriginalsPlace(t *testing.T) {
	err := (&keeper.CopyError{Dir: "/a", Of: "/a", PID: 7}).Error()
	if strings.Contains(err, "copy of") || !strings.Contains(err, "/a is not the directory that was there") ||
		!strings.Contains(err, "process 7") {
		t.Error(err)
	}
}

// TestACopyOfAKilledKeepersDirectory leaves alone what that has left running: the original's next keeper ends it.
func TestACopyOfAKilledKeepersDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "alloc")
	wipe(t, dir)
	b := begin(t, dir)
	must.OK(t, unix.Kill(b.Keeper().PID, unix.SIGKILL))
	<-b.Done()
	gone(t, b.Keeper())
	copyDir(t, dir, dir+".copy")
	cfg := keeper.Config{Dir: dir + ".copy", Marker: mark(dir + ".copy")}
	start(t, cfg)
	same.Fails(t, same.Err(keeper.End(context.Background(), cfg)), "a keeper with a client was ended")
	if !b.child.Runs() {
		t.Error("the copy has ended what the original's keeper left")
	}
	must.Get(keeper.Sweep(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)}))(t)
	b.wantGone(t)
}

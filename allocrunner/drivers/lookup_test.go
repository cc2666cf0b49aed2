package drivers_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/internal/must"
)

func TestLookUp(t *testing.T) {
	root := t.TempDir()
	task, bin := filepath.Join(root, "task"), filepath.Join(root, "bin")
	for _, dir := range []string{task + "/local/sub", task + "/dir", bin} {
		must.OK(t, os.MkdirAll(dir, 0o755))
	}
	for path, mode := range map[string]os.FileMode{
		task + "/local/both": 0o644, task + "/both": 0o644, task + "/top": 0o600, task + "/local/sub/deep": 0o755,
		bin + "/tool": 0o755, bin + "/plain": 0o644, root + "/outside": 0o644, bin + "/dir": 0o755,
	} {
		must.OK(t, os.WriteFile(path, nil, mode))
	}
	links := map[string]string{
		task + "/local/inner": "sub/deep", task + "/local/escape": "../../outside", task + "/local/tool-link": bin + "/tool",
	}
	for path, to := range links {
		must.OK(t, os.Symlink(to, path))
	}
	must.OK(t, unix.Mkfifo(task+"/local/pipe", 0o644))
	env := []string{"PATH=relative:" + bin}
	for command, want := range map[string]string{
		"both": task + "/local/both", "top": task + "/top", "sub/deep": task + "/local/sub/deep", "inner": task +
			"/local/inner",
		"tool": bin + "/tool", "tool-link": task + "/local/tool-link", "dir": bin + "/dir", bin + "/plain": bin + "/plain",
		"escape": "", "plain": "", "../outside": "", "pipe": "", "nothing": "", "/no/such": "", bin: bin, "": "",
		"sub/none": "",
	} {
		got, err := drivers.LookUp(task, command, env)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", command, got, err, want)
		}
		if _, ok := errors.AsType[*drivers.StartError](err); err != nil && !ok {
			t.Errorf("%q: %v is no StartError", command, err)
		}
	}
	for path, want := range map[string]os.FileMode{task + "/local/both": 0o755, task + "/both": 0o644, task +
		"/top": 0o711, root + "/outside": 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if got, err := drivers.LookUp(task, "sh", nil); err != nil || !filepath.IsAbs(got) {
		t.Errorf("without a PATH: %q, %v", got, err)
	}
}

// TestAbsoluteCommandIsThatFile: what somebody has put into the task directory under the same name is not it.
func TestAbsoluteCommandIsThatFile(t *testing.T) {
	root := t.TempDir()
	task, command := filepath.Join(root, "task"), filepath.Join(root, "bin", "tool")
	for _, path := range []string{filepath.Join(task, command), filepath.Join(task, "local", command), command} {
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, nil, 0o755))
	}
	if got, err := drivers.LookUp(task, command, nil); got != command || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, command)
	}
	must.OK(t, os.Remove(command))
	if got, err := drivers.LookUp(task, command, nil); got != "" || err == nil {
		t.Errorf("got %q, %v when it is gone", got, err)
	}
}

// TestLookUpChangesNoFileOutside, however fast a task swaps what it has in its directory.
func TestLookUpChangesNoFileOutside(t *testing.T) {
	root := t.TempDir()
	task, outside := filepath.Join(root, "task"), filepath.Join(root, "outside")
	name, other := filepath.Join(task, "x"), filepath.Join(task, "other")
	must.OK(t, os.Mkdir(task, 0o755))
	must.OK(t, os.WriteFile(outside, nil, 0o600))
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			var err error
			if i%2 == 0 {
				err = os.WriteFile(other, nil, 0o644)
			} else {
				err = os.Symlink(outside, other)
			}
			if err := errors.Join(err, os.Rename(other, name)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 3000 {
		_, _ = drivers.LookUp(task, "x", nil)
	}
	close(stop)
	swaps.Wait()
	if info, err := os.Stat(outside); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

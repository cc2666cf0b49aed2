package allocdir_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/internal/allocdir"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestRemoveWhatIsMounted: a directory of somebody else, mounted in an allocation's, loses no file. The test runs again
// with mounts of its own.
func TestRemoveWhatIsMounted(t *testing.T) {
	const variable = "TASKAPI_TEST_MOUNT"
	if top := os.Getenv(variable); top != "" {
		removeMounted(t, top)
		return
	}
	top := t.TempDir()
	if exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", top).Run() != nil {
		t.Skip("this user of this machine can mount nothing")
	}
	cmd := exec.Command("unshare", "-m", os.Args[0], "-test.run=^TestRemoveWhatIsMounted$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+top)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestRemove") {
		t.Errorf("%v\n%s", err, out)
	}
}

func removeMounted(t *testing.T, top string) {
	other, allocs := filepath.Join(top, "other"), filepath.Join(top, "with blanks", "allocs")
	at := filepath.Join(allocs, "a", "t", "local", "data")
	for _, dir := range []string{other, at} {
		must.OK(t, os.MkdirAll(dir, 0o755))
	}
	file := filepath.Join(other, "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	if out, err := exec.Command("mount", "--bind", other, at).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	dir := filepath.Join(allocs, "a")
	same.Says(t, nil, at+" is mounted in it", allocdir.Remove(dir), "a mount in it")
	left := filepath.Join(allocs, ".removed-a")
	must.OK(t, os.Rename(dir, left))
	same.Fails(t, allocdir.RemoveLeftovers(allocs), "a mount in what is left: no error")
	must.Get(os.Stat(file))(t)
	if out, err := exec.Command("umount", filepath.Join(left, "t", "local", "data")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	must.OK(t, allocdir.RemoveLeftovers(allocs))
	must.Get(os.Stat(file))(t)
	same.Fails(t, same.Err(os.Stat(left)), "what is left is left once more")
}

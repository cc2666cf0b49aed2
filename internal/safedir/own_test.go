package safedir_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"taskapi/internal/must"
	"taskapi/internal/safedir"
)

// sharedDir returns a directory that every user may write to, as /tmp is.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("/tmp", "safedir"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.OK(t, os.Chmod(dir, 0o777|os.ModeSticky))
	return dir
}

// TestOwnIsTheSameEachTime, also when the one who has taken the name gives it up again.
func TestOwnIsTheSameEachTime(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs another user, and so root")
	}
	taken := filepath.Join(sharedDir(t), "x")
	must.OK(t, os.Mkdir(taken, 0o755))
	must.OK(t, os.Chown(taken, 1234, 1234))
	first := own(t, taken)
	if first == taken {
		t.Errorf("another user's directory: %s", first)
	}
	if again := own(t, taken); again != first {
		t.Errorf("got %s, and then %s", first, again)
	}
	must.OK(t, os.Remove(taken))
	if later := own(t, taken); later != first {
		t.Errorf("when the name is free again: %s, want %s", later, first)
	}
}

func own(t *testing.T, path string) string {
	t.Helper()
	d := must.Get(safedir.Own(path))(t)
	defer d.Close()
	if info, err := os.Stat(d.Path); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("%v, %v; want mode 0711", info, err)
	}
	return d.Path
}

// TestOwnInAUserNamespace: the machine's root is nobody there, and /tmp that one's.
func TestOwnInAUserNamespace(t *testing.T) {
	if dir := os.Getenv("OWN_IN"); dir != "" {
		own(t, filepath.Join(dir, "x"))
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs another user, and so root")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestOwnInAUserNamespace$")
	cmd.Dir = "/"
	cmd.Env = []string{"OWN_IN=" + sharedDir(t)}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		Credential:  &syscall.Credential{NoSetGroups: true}, // 1234 outside
		UidMappings: []syscall.SysProcIDMap{{HostID: 1234, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: 1234, Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("no user namespace can be made: %v", err)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

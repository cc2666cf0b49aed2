package allocdir_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// stranger is a user that is not ours, and needs no entry in the user database.
var stranger = interfaces.User{Name: "stranger", UID: 54321, GID: 54322, Home: "/"}

func self() interfaces.User {
	return interfaces.User{Name: "self", UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
}

// newAlloc returns an allocation directory that every user can reach.
func newAlloc(t *testing.T) string {
	t.Helper()
	top := must.ShortDir(t)
	dir := filepath.Join(top, "allocs", "115ef685")
	must.OK(t, allocdir.BuildAlloc(dir, allocdir.AnyUser, nil))
	return dir
}

type entry struct {
	Mode     string
	UID, GID uint32
}

func stat(t *testing.T, path string) entry {
	t.Helper()
	info := must.Get(os.Lstat(path))(t)
	st := info.Sys().(*syscall.Stat_t)
	return entry{info.Mode().String(), st.Uid, st.Gid}
}

func tree(t *testing.T, dir string) map[string]entry {
	t.Helper()
	got := map[string]entry{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			rel, _ := filepath.Rel(dir, path)
			got[rel] = stat(t, path)
		}
		return err
	})
	must.OK(t, err)
	return got
}

func TestLayout(t *testing.T) {
	proctest.NeedRoot(t)
	old := syscall.Umask(0o077) // the modes must not depend on it
	defer syscall.Umask(old)
	dir := newAlloc(t)
	paths := must.Get(allocdir.BuildTask(dir, "web", stranger))(t)
	const u, g = 54321, 54322
	want := map[string]entry{
		".":           {"drwx--x--x", 0, 0},
		"alloc":       {"dtrwxrwxrwx", 0, 0},
		"alloc/data":  {"drwxrwxrwx", 0, 0},
		"alloc/logs":  {"drwxr-xr-x", 0, 0},
		"alloc/tmp":   {"dtrwxrwxrwx", 0, 0},
		"web":         {"drwxr-xr-x", u, g},
		"web/local":   {"drwxr-xr-x", u, g},
		"web/private": {"drwx------", u, g},
		"web/secrets": {"drwx------", u, g},
		"web/tmp":     {"dtrwxrwxrwx", u, g},
	}
	same.As(t, want, tree(t, dir), "layout")
	wantPaths := interfaces.TaskDir{
		AllocDir: dir, SharedDir: dir + "/alloc", LogDir: dir + "/alloc/logs", Dir: dir + "/web", LocalDir: dir +
			"/web/local",
		SecretsDir: dir + "/web/secrets", PrivateDir: dir + "/web/private", TmpDir: dir + "/web/tmp",
	}
	same.As(t, wantPaths, paths, "paths")
}

func TestBuildAgainKeepsWhatIsThere(t *testing.T) {
	dir := newAlloc(t)
	paths := must.Get(allocdir.BuildTask(dir, "web", self()))(t)
	file := filepath.Join(paths.LocalDir, "kept")
	for _, err := range []error{
		os.WriteFile(file, []byte("x"), 0o600),
		os.Chmod(paths.LocalDir, 0o700),   // the task's own choice
		os.Chmod(paths.SecretsDir, 0o777), // opened by the task
		os.Chmod(paths.LogDir, 0o777),
	} {
		must.OK(t, err)
	}
	must.OK(t, allocdir.BuildAlloc(dir, allocdir.AnyUser, nil))
	must.Get(allocdir.BuildTask(dir, "web", self()))(t)
	for path, want := range map[string]string{
		file: "-rw-------", paths.LocalDir: "drwx------", paths.SecretsDir: "drwx------", paths.LogDir: "drwxr-xr-x",
	} {
		same.As(t, want, stat(t, path).Mode, path, " has mode")
	}
}

// A task that ran before may have put links where the next start makes, opens or gives away something.
func TestLinksThatATaskPlantedAreNotFollowed(t *testing.T) {
	proctest.NeedRoot(t)
	for _, place := range []string{"web", "web/local", "web/secrets", "web/private", "web/tmp"} {
		t.Run(place, func(t *testing.T) {
			dir := newAlloc(t)
			victim := t.TempDir()
			must.OK(t, os.Chmod(victim, 0o750))
			if place != "web" {
				must.Get(allocdir.BuildTask(dir, "web", stranger))(t)
			}
			path := filepath.Join(dir, place)
			must.OK(t, errors.Join(os.RemoveAll(path), os.Symlink(victim, path)))
			before := stat(t, victim)
			_, err := allocdir.BuildTask(dir, "web", stranger)
			same.Says(t, allocdir.ErrLink, path, err)
			same.As(t, before, stat(t, victim), "the link's target changed from ", before, " to")
		})
	}
}

func TestLinksInTheSharedDirectoryAreNotFollowed(t *testing.T) {
	for _, place := range []string{"alloc", "alloc/data", "alloc/logs", "alloc/tmp"} {
		dir := newAlloc(t)
		victim := t.TempDir()
		path := filepath.Join(dir, place)
		must.OK(t, errors.Join(os.Chmod(victim, 0o750), os.RemoveAll(path), os.Symlink(victim, path)))
		same.Error(t, allocdir.ErrLink, allocdir.BuildAlloc(dir, allocdir.AnyUser, nil), place)
		same.As(t, "drwxr-x---", stat(t, victim).Mode, place, ": the mode of the link's target")
	}
}

// In alloc/, which is everybody's, a task must not be able to put something else in the place of logs, which taskapi
// writes to.
func TestATaskCanNotReplaceLogs(t *testing.T) {
	proctest.NeedRoot(t)
	dir := newAlloc(t)
	shared := filepath.Join(dir, "alloc")
	if out, err := asStranger("mv", shared+"/logs", shared+"/gone"); err == nil {
		t.Errorf("a task moved logs away: %s", out)
	}
	if out, err := asStranger("touch", shared+"/mine", shared+"/data/mine", shared+"/tmp/mine"); err != nil {
		t.Errorf("a task can't write where it should: %v: %s", err, out)
	}
	if out, err := asStranger("touch", shared+"/logs/mine"); err == nil {
		t.Errorf("a task wrote into logs: %s", out)
	}
	if out, err := asStranger("ls", dir); err == nil {
		t.Errorf("a task listed the allocation directory: %s", out)
	}
}

func asStranger(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger.UID, Gid: stranger.GID}}
	return cmd.CombinedOutput()
}

func TestSomethingInTheWay(t *testing.T) {
	dir := newAlloc(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "web"), nil, 0o600))
	if _, err := allocdir.BuildTask(dir, "web", self()); !errors.Is(err, allocdir.ErrNotDirectory) {
		t.Errorf("a file in the task directory's place: got %v, want ErrNotDirectory", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	for _, place := range []string{file, file + "/allocs/x"} {
		if err := allocdir.BuildAlloc(place, allocdir.AnyUser, nil); err == nil || !strings.Contains(err.Error(), file) ||
			!strings.Contains(err.Error(), "in the way") {
			t.Errorf("BuildAlloc(%q) = %v, want an error that says what is in the way", place, err)
		}
	}
}

func TestBadNames(t *testing.T) {
	dir := newAlloc(t)
	for _, task := range []string{"", ".", "..", "alloc", "a/b", "../x"} {
		same.Fails(t, same.Err(allocdir.BuildTask(dir, task, self())), "BuildTask made a directory for ", task)
	}
	same.Fails(t, allocdir.BuildAlloc("relative", allocdir.AnyUser, nil), "BuildAlloc took a relative path")
}

func TestDirectoriesWithBlanks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b\tc", "allocs", "x")
	must.OK(t, allocdir.BuildAlloc(dir, allocdir.AnyUser, nil))
	must.Get(allocdir.BuildTask(dir, "web server", self()))(t)
	same.As(t, "drwx------", stat(t, filepath.Join(dir, "web server", "secrets")).Mode, "secrets has mode")
}

// The test runs itself as another user: root may write anywhere.
func TestDirectoryThatCanNotBeWritten(t *testing.T) {
	if dir := os.Getenv("ALLOCDIR_TEST_BUILD"); dir != "" {
		err := allocdir.BuildAlloc(dir, allocdir.AnyUser, nil)
		same.Says(t, fs.ErrPermission, "data directory", err)
		return
	}
	proctest.NeedRoot(t)
	locked := filepath.Join(newAlloc(t), "locked")
	must.OK(t, os.Mkdir(locked, 0o755))
	binary := must.Read(t, os.Args[0])
	self := filepath.Join(filepath.Dir(filepath.Dir(locked)), "test") // where the stranger can run it
	must.Program(t, self, binary)
	cmd := exec.Command(self, "-test.run=^TestDirectoryThatCanNotBeWritten$")
	cmd.Dir, cmd.Env = "/", []string{"ALLOCDIR_TEST_BUILD=" + locked + "/x"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger.UID, Gid: stranger.GID}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestADirectoryThatTheUserCanNotReach(t *testing.T) {
	proctest.NeedRoot(t)
	dir := newAlloc(t)
	closed := filepath.Dir(filepath.Dir(dir))
	must.OK(t, os.Chmod(closed, 0o700))
	_, err := allocdir.BuildTask(dir, "web", stranger)
	if err == nil || !strings.Contains(err.Error(), "chmod o+x "+closed) {
		t.Errorf("got %v, want an error that names %s", err, closed)
	}
	must.OK(t, os.Chown(closed, 0, int(stranger.GID)))
	must.OK(t, os.Chmod(closed, 0o710))
	same.Error(t, nil, same.Err(allocdir.BuildTask(dir, "web", stranger)), "reachable through its group")
}

package keeper_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// TestArgumentsHideTheDirectory: every user of the machine can read a process's arguments.
func TestArgumentsHideTheDirectory(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	args := proc.Args(c.Keeper().PID)
	if !strings.HasPrefix(args, "taskapi\x00keeper\x00") {
		t.Fatalf("the keeper's arguments are %q", args)
	}
	if strings.Contains(args, dir) || strings.Contains(args, "/") {
		t.Errorf("the keeper's arguments name its directory: %q", args)
	}
}

// nobody is an unprivileged user.
const nobody = 65534

// TestKeeperIsNotDumpable: what the memory of a keeper holds is in no core dump, and no other process of its user reads
// it, also when it has started the process of another user. The kernel shows that by giving /proc/PID/environ to root.
func TestKeeperIsNotDumpable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a keeper as another user")
	}
	dir := must.Get(os.MkdirTemp("/tmp", "keeper"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.OK(t, os.Chown(dir, nobody, nobody))
	first := exec.Command(copyOfTests(t), "agent", dir, "exec sleep 1000")
	first.Dir = "/"
	first.Stderr = os.Stderr
	first.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out := must.Get(first.StdoutPipe())(t)
	must.OK(t, first.Start())
	t.Cleanup(func() {
		_ = first.Process.Kill()
		_ = first.Wait()
		if last, err := recordOf(dir); err == nil {
			_ = last.Keeper.Signal(unix.SIGKILL)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasSuffix(line, " <nil>\n") {
		t.Fatalf("%q, %v", line, err)
	}
	last := must.Get(recordOf(dir))(t)
	for pid, want := range map[int]uint32{last.Keeper.PID: 0, last.Tasks[0].PID: nobody} {
		var st unix.Stat_t
		must.OK(t, unix.Stat(fmt.Sprintf("/proc/%d/environ", pid), &st))
		if st.Uid != want {
			t.Errorf("process %d belongs to user %d, want %d (keeper %d, task %d)", pid, st.Uid, want, last.Keeper.PID,
				last.Tasks[0].PID)
		}
	}
}

// recordOf returns the record of another user's keeper.
func recordOf(dir string) (r keeper.Record, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "keeper.json"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// copyOfTests is this program where every user can execute it.
func copyOfTests(t *testing.T) string {
	t.Helper()
	data := must.Read(t, "/proc/self/exe")
	f := must.Get(os.CreateTemp("/tmp", "keeper-test"))(t)
	t.Cleanup(func() { os.Remove(f.Name()) })
	must.Get(f.Write(data))(t)
	must.OK(t, f.Chmod(0o755))
	must.OK(t, f.Close())
	return f.Name()
}

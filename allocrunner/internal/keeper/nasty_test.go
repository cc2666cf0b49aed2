package keeper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestWhatATaskInherits of its keeper, and that of the process that started it: descriptors 0, 1 and 2, and no signal
// blocked or ignored.
func TestWhatATaskInherits(t *testing.T) {
	leak, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0) // without close-on-exec
	must.OK(t, err)
	defer unix.Close(leak)
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	run(t, c, shell(dir, "first", "exec sleep 1000")) // its pipes are not the next one's to have
	run(t, c, shell(dir, "t", `cd /proc/self/fd; echo *; grep -E "Sig(Blk|Ign)" /proc/self/status`))
	if exit, err := c.Wait(t.Context(), "t"); err != nil || !exit.Successful() {
		t.Fatalf("%+v, %v", exit, err)
	}
	must.Get(c.KillTree(t.Context(), proctest.Latest(t, c, "t")))(t)
	text, _ := os.ReadFile(filepath.Join(dir, "t.stdout.0"))
	fds, masks, _ := strings.Cut(string(text), "\n")
	// the shell itself has the listing open
	if fields := strings.Fields(fds); len(fields) > 4 || !strings.HasPrefix(fds, "0 1 2") {
		t.Errorf("descriptors %s", fds)
	}
	same.As(t, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n", masks, "signals")
}

// smallDisk returns a directory with little room.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a small disk takes root to mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip("a small disk can't be mounted here:", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill fills the disk to the last byte with a file.
func fill(t *testing.T, dir string) (ballast string) {
	t.Helper()
	f := must.Get(os.Create(filepath.Join(dir, "ballast")))(t)
	defer f.Close()
	for n := 1; n > 0; {
		n, _ = f.Write(make([]byte, 4096))
	}
	return f.Name()
}

// TestAFullDisk costs log lines and records, and no task: what is lost is counted in the log when there is room again.
func TestAFullDisk(t *testing.T) {
	dir := smallDisk(t)
	c := start(t, keeper.Config{Dir: dir})
	fifo := proctest.Fifo(t, dir)
	ballast := fill(t, dir)
	status := run(t, c, shell(dir, "t", `head -c 1000000 /dev/zero | tr '\0' 'x'; echo $$ >$FIFO; while [ -e ballast ]; `+
		`do sleep 0.05; done; echo again; exit 6`))
	if pid := proctest.ReadPID(t, fifo); pid != status.PID {
		t.Errorf("process %d says that it wrote all, want %d", pid, status.PID)
	}
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit != nil {
		t.Fatalf("%+v, %v", list, err)
	}
	must.OK(t, os.Remove(ballast))
	same.As(t, 6, must.Get(c.Wait(t.Context(), "t"))(t).ExitCode)
	must.Get(c.KillTree(t.Context(), proctest.Latest(t, c, "t")))(t)
	var all strings.Builder
	for n := range 3 { // which file they are in depends on which could be made
		text, _ := os.ReadFile(fmt.Sprintf("%s/t.stdout.%d", dir, n))
		all.Write(text)
	}
	lost := 0
	for _, note := range regexp.MustCompile(
		`\[taskapi: (\d+) bytes of output are lost here: no space left on device\]\n`).FindAllStringSubmatch(
		all.String(), -1) {
		n := 0
		fmt.Sscan(note[1], &n)
		lost += n
	}
	kept := strings.Count(all.String(), "x")
	if strings.HasSuffix(all.String(), "again\n") { // the room is made a moment after the file's name is gone
		kept += len("again\n")
	}
	if lost == 0 || kept+lost != 1000000+len("again\n") {
		t.Errorf("%d bytes kept, %d counted as lost, of 1000006; the log ends %q", kept, lost,
			all.String()[max(0, all.Len()-200):])
	}
	if last, err := keeper.Last(dir); err != nil || len(last.Tasks) != 1 {
		t.Errorf("the record after the disk was full: %+v, %v", last, err)
	}
}

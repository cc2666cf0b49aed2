package disk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// The other processes of a test are this test binary in one of these roles. Their arguments are the directory of a
// store, and more.
const roleVariable = "DISK_TEST_ROLE"

var roles = map[string]func(){
	"watch": watch,
	"poll":  poll,
	"hold":  holdLease,
	"lock":  holdLock,
	"take":  takeTurns,
	"keep":  func() { _ = unix.Pause() },
}

func orExit[T any](value T, err error) T {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	return value
}

// process is another process.
type process struct{ proctest.Child }

// start starts a process, which is killed at the end of the test.
func start(t testing.TB, role, dir string, args ...string) process {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{dir}, args...)...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	return process{proctest.Start(t, cmd)}
}

// stop stops a process, and returns when none of its threads runs.
func (p process) stop(t testing.TB) {
	t.Helper()
	must.OK(t, p.Process.Signal(syscall.SIGSTOP))
	must.OK(t, unix.Waitid(unix.P_PID, p.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
}

// line returns the next line that a process prints.
func (p process) line(t testing.TB) string {
	t.Helper()
	line, err := p.Stdout.ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error:") {
		t.Fatalf("the process said %q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

func size(t testing.TB, dir string) int64 {
	info := must.Get(os.Stat(filepath.Join(dir, "log")))(t)
	return info.Size()
}

// watched returns a store with an entry k, its directory, and a process in a role that waits for a change of k.
func watched(t *testing.T, role string) (s *disk.Store, p process, dir string) {
	t.Helper()
	dir = scratch(t)
	s = open(t, dir)
	clustertest.Put(t, s, "k", "v")
	p = start(t, role, dir)
	p.line(t)
	return s, p, dir
}

// watch waits for changes, and prints them.
func watch() {
	s := disk.New(os.Args[1])
	index := orExit(s.List(context.Background(), cluster.Span{Limit: 1})).Index
	fmt.Println(index)
	for {
		changes := orExit(s.Watch(context.Background(), "k", index))
		fmt.Println(changes.Keys, changes.Gap)
		index = changes.Index
	}
}

// poll waits as watch does, but with only as many descriptors as the store has files: none is left for inotify.
func poll() {
	r, w, err := os.Pipe() // which has the runtime open its own
	orExit(0, err)
	r.Close()
	w.Close()
	last, files := 0, []*os.File(nil)
	for range 4 {
		f := orExit(os.Open(os.DevNull))
		last = int(f.Fd())
		files = append(files, f)
	}
	for _, f := range files {
		f.Close()
	}
	var limit unix.Rlimit
	orExit(0, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	limit.Cur = uint64(last + 1)
	orExit(0, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	go watch()
	_ = unix.Pause()
}

// TestWatchWithoutInotify: a watch works without inotify, of which a user has a bounded number of instances. It seldom
// reads the log while nothing changes.
func TestWatchWithoutInotify(t *testing.T) {
	t.Parallel()
	s, p, _ := watched(t, "poll")
	fds := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Process.Pid)))(t)
	for _, fd := range fds {
		if target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.Process.Pid, fd.Name())); strings.Contains(target,
			"inotify") {
			t.Fatal("the other process has inotify")
		}
	}
	before := reads(t, p)
	time.Sleep(time.Second) // the time in which reads are counted
	if n := reads(t, p) - before; n > 10 {
		t.Errorf("the other process has read %d times in a second", n)
	}
	clustertest.Put(t, s, "k", "w")
	same.As(t, "[k] false", p.line(t), "the other process has seen")
}

// reads returns how often a process has read something.
func reads(t *testing.T, p process) (n int) {
	t.Helper()
	for line := range strings.Lines(string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/io", p.Process.Pid)))(t))) {
		if count, ok := strings.CutPrefix(line, "syscr: "); ok {
			n = must.Get(strconv.Atoi(strings.TrimSpace(count)))(t)
		}
	}
	return n
}

// TestWatchInAnotherProcess: a watch in another process returns a change, also when the log is rewritten meanwhile.
// When it is rewritten twice, a slow process may get a gap instead.
func TestWatchInAnotherProcess(t *testing.T) {
	t.Parallel()
	s, p, dir := watched(t, "watch")
	for largest := int64(0); size(t, dir) >= largest; { // until the log is rewritten
		largest = size(t, dir)
		if largest > 1<<20 {
			t.Fatalf("the log has %d bytes: it was not rewritten", largest)
		}
		clustertest.Put(t, s, "other", strings.Repeat("v", 20<<10))
	}
	clustertest.Put(t, s, "k", "w")
	same.As(t, "[k] false", p.line(t), "the other process has seen")
}

// TestWatchMissesNothing: a process that was stopped while the log was rewritten more than once reports a gap.
func TestWatchMissesNothing(t *testing.T) {
	t.Parallel()
	s, p, _ := watched(t, "watch")
	p.stop(t)
	clustertest.Commit(t, s, clustertest.Txn(clustertest.Delete("k")))
	for range 80 {
		clustertest.Put(t, s, "other", strings.Repeat("v", 20<<10))
	}
	must.OK(t, p.Process.Signal(syscall.SIGCONT))
	got := p.line(t)
	if got == "[k] false" { // it had just found that the log has its name: it reads that log to its end first
		clustertest.Put(t, s, "k", "w")
		got = p.line(t)
	}
	same.As(t, "[] true", got, "the other process has seen")
}

// holdLease holds a lease, with entries, until it is killed. With one more argument, a child process holds the lease,
// too.
func holdLease() {
	s := disk.New(os.Args[1])
	lease := orExit(s.Hold(context.Background(), "alloc"))
	orExit(s.Commit(context.Background(), clustertest.Txn(
		clustertest.Leased("k/1", "v", "alloc"), clustertest.Leased("k/2", "v", "alloc"))))
	pid := 0
	if len(os.Args) > 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVariable+"=keep")
		cmd.ExtraFiles = lease.Files()
		if err := cmd.Start(); err != nil {
			orExit(0, err)
		}
		pid = cmd.Process.Pid
	}
	fmt.Println(pid)
	_ = unix.Pause()
}

// TestLeaseEndsWithItsHolders: a lease ends with its last holder and no earlier, also when the holders are killed, and
// whether another store is open then or only later.
func TestLeaseEndsWithItsHolders(t *testing.T) {
	for _, opened := range []string{"while it is open", "later"} {
		t.Run(opened, func(t *testing.T) {
			t.Parallel()
			dir := scratch(t)
			p := start(t, "hold", dir, "with a keeper")
			keeper := must.Get(strconv.Atoi(p.line(t)))(t)
			t.Cleanup(func() { _ = unix.Kill(keeper, unix.SIGKILL) }) // in case of an error before
			observer := open(t, dir)
			begin := clustertest.List(t, observer, cluster.Span{Prefix: "k/"})
			p.Kill()
			if len(begin.Entries) != 2 || clustertest.Get(t, observer, "k/1").Lease != "alloc" {
				t.Fatalf("while the keeper lives: %+v", begin)
			}
			again := clustertest.Hold(t, observer, "alloc") // as the next agent does
			again.Close()
			if e := clustertest.Get(t, observer, "k/2"); e.ModifyIndex != begin.Index {
				t.Fatalf("while the keeper lives: %+v", e)
			}
			if opened == "later" {
				observer.Close()
			}
			must.OK(t, unix.Kill(keeper, unix.SIGKILL))
			gone(t, keeper)
			if opened == "later" {
				observer = open(t, dir)
			}
			if e := clustertest.Get(t, observer, "k/1"); e.ModifyIndex != 0 {
				t.Errorf("nobody holds the lease: %+v", e)
			}
			changes, err := observer.Watch(t.Context(), "k/", begin.Index)
			if err != nil || len(changes.Keys) != 2 {
				t.Errorf("got %+v, %v", changes, err)
			}
			if names := files(t, dir); fmt.Sprint(names) != "[leases lock log queue]" {
				t.Errorf("%q is left", names)
			}
		})
	}
}

// TestLeaseEndsWhileOthersWrite: the entries of an ended lease are deleted also while others write without a pause.
func TestLeaseEndsWhileOthersWrite(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := open(t, dir)
	p := start(t, "hold", dir)
	p.line(t)
	index := clustertest.List(t, s, cluster.Span{}).Index
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for ctx.Err() == nil {
			if _, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Set("other", "v"))); err != nil {
				t.Error(err)
				return
			}
		}
	})
	p.Kill()
	limited, end := context.WithTimeout(t.Context(), 2*time.Minute)
	defer end()
	if changes, err := s.Watch(limited, "k/", index); err != nil || len(changes.Keys) != 2 && !changes.Gap {
		t.Errorf("got %+v, %v", changes, err)
	}
	cancel()
	writing.Wait()
}

// gone waits for the end of a process that is not a child of this one.
func gone(t testing.TB, pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, syscall.ESRCH) {
		return
	}
	must.OK(t, err)
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n == 1 {
			return
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

func files(t testing.TB, dir string) (names []string) {
	entries := must.Get(os.ReadDir(dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// holdLock takes the lock as a Commit does, and keeps it.
func holdLock() {
	f := orExit(os.OpenFile(filepath.Join(os.Args[1], "lock"), os.O_RDWR, 0))
	orExit(0, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	orExit(fmt.Fprintf(f, "%-19d\n", os.Getpid()))
	fmt.Println("locked")
	_ = unix.Pause()
}

// TestHangingWriter: while a process hangs with the lock, the writes of others fail with an error that names it, and
// their reads go on.
func TestHangingWriter(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := open(t, dir)
	index := clustertest.Put(t, s, "k", "v")
	p := start(t, "lock", dir)
	p.line(t)
	must.OK(t, p.Process.Signal(syscall.SIGSTOP))
	for name, write := range map[string]func(context.Context) error{
		"commit": func(ctx context.Context) error {
			_, err := s.Commit(ctx, clustertest.Txn(clustertest.Set("k", "w")))
			return err
		},
		"hold": func(ctx context.Context) error { _, err := s.Hold(ctx, "o"); return err },
	} {
		// The write waits for the lock until then, also on a busy machine.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := write(ctx)
		cancel()
		if want := fmt.Sprintf("process %d ", p.Process.Pid); !errors.Is(err, cluster.ErrUnavailable) ||
			!errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, cluster.ErrUncertain) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want one that says %q", name, err, want)
		}
	}
	for _, s := range []*disk.Store{s, open(t, dir)} {
		if e := clustertest.Get(t, s, "k"); string(e.Value) != "v" || e.ModifyIndex != index {
			t.Errorf("got %+v", e)
		}
	}
	waiting := make(chan error)
	go func() {
		_, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Set("k", "w")))
		waiting <- err
	}()
	p.Kill()
	same.Error(t, nil, <-waiting, "after the writer was killed")
}

// takeTurns commits as often as a number says, in as many goroutines as keys are given, and prints how many commits of
// others there were while each commit waited.
func takeTurns() {
	s, count := disk.New(os.Args[1]), orExit(strconv.Atoi(os.Args[2]))
	ctx := context.Background()
	var writers sync.WaitGroup
	for _, key := range os.Args[3:] {
		writers.Go(func() {
			for range count {
				_, before, err := s.Get(ctx, "k")
				orExit(0, err)
				set := clustertest.Txn(clustertest.Set("k"+key, "v"))
				after, err := s.Commit(ctx, set)
				for errors.Is(err, cluster.ErrUnavailable) && !errors.Is(err, cluster.ErrUncertain) { // a disk stood still
					after, err = s.Commit(ctx, set)
				}
				fmt.Println(orExit(after, err) - before)
			}
		})
	}
	writers.Wait()
}

// waits returns the next numbers that a process which takes turns prints, the smallest first.
func (p process) waits(t *testing.T, count int) (waits []int) {
	t.Helper()
	for range count {
		waits = append(waits, orExit(strconv.Atoi(p.line(t))))
	}
	slices.Sort(waits)
	return waits
}

// TestWritersTakeTurns: eight processes write without a pause. No commit waits for more than twenty times as many other
// commits as the median does.
func TestWritersTakeTurns(t *testing.T) {
	dir := scratch(t)
	clustertest.Put(t, open(t, dir), "k", "v")
	var writers []process
	for i := range 8 {
		writers = append(writers, start(t, "take", dir, "60", strconv.Itoa(i+1)))
	}
	var waits []int
	for _, w := range writers {
		waits = append(waits, w.waits(t, 60)...)
	}
	slices.Sort(waits)
	if median, most := waits[len(waits)/2], waits[len(waits)-1]; most > 20*median {
		t.Errorf("a commit was the %dth since it began, and half of all were at most the %dth", most, median)
	}
}

// TestWritersOfOneProcessTakeTurns: a process with one writer beside one with seven. Each writes without a pause, and a
// commit of the lone writer waits for about as many other commits as each of the seven does.
func TestWritersOfOneProcessTakeTurns(t *testing.T) {
	dir := scratch(t)
	clustertest.Put(t, open(t, dir), "k", "v")
	const forever = "1000000"
	many := start(t, "take", dir, forever, "1", "2", "3", "4", "5", "6", "7")
	many.line(t) // they write
	lone := start(t, "take", dir, forever, "8")
	a, b := lone.waits(t, 60), many.waits(t, 60)
	if x, y := a[30], b[30]; x*3 < 8 || x > 3*8 || y > 3*8 {
		t.Errorf("half of the commits of a lone writer were at most the %dth since they began, and of seven others the %dth",
			x, y)
	}
}

// TestAStoppedWriterWaits: a process that is stopped while it waits for the lock delays the others only for a moment.
func TestAStoppedWriterWaits(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := open(t, dir)
	clustertest.Put(t, s, "k", "v")
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	must.OK(t, err)
	p := start(t, "take", dir, "1", "0")
	for waits := false; !waits; time.Sleep(time.Millisecond) { // another process's doing can only be polled for
		places := must.Read(t, filepath.Join(dir, "queue"))
		waits = len(bytes.Trim(places, "\x00")) > 0
	}
	p.stop(t)
	lock.Close()   // and with it the lock ends
	for range 20 { // each would wait for a second, and all for longer than a Commit does, if it were not remembered
		clustertest.Put(t, s, "k", "w")
	}
}

// TestAPlaceInTheQueueEndsWithItsFile: a store that could not be opened in time begins without a place when it is
// opened again, since the lock that made the place its own is gone.
func TestAPlaceInTheQueueEndsWithItsFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	must.OK(t, os.Mkdir(dir, 0o700))
	lock := must.Get(os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600))(t)
	defer lock.Close()
	must.OK(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	s := disk.New(dir)
	defer s.Close()
	for most := 100 * time.Millisecond; s.Place() == 0; most *= 2 { // a busy machine may give up before it waits
		ctx, cancel := context.WithTimeout(t.Context(), most)
		_, _, err := s.Get(ctx, "k")
		cancel()
		if err == nil || s.Place() > 0 && !errors.Is(err, cluster.ErrUnavailable) || most > time.Minute {
			t.Fatalf("while another has the lock: %v, place %d", err, s.Place())
		}
	}
	must.OK(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	if _, _, err := s.Get(t.Context(), "k"); err != nil || s.Place() != 0 {
		t.Errorf("afterwards: %v, place %d; want none", err, s.Place())
	}
}

// TestOneLooksUpTheLeases: many processes look up the leases as often as few. They do so when one of them is stopped.
func TestOneLooksUpTheLeases(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	const processes = 16
	holder := start(t, "hold", dir)
	holder.line(t)
	stopped := start(t, "watch", dir)
	stopped.line(t)
	if !polltest.Until(func() bool { return len(looks(t, dir)) > 0 }) {
		t.Fatal("nobody looks up the leases")
	}
	stopped.stop(t)
	var stores []*disk.Store
	for range processes {
		stores = append(stores, open(t, dir))
		clustertest.List(t, stores[len(stores)-1], cluster.Span{})
	}
	seen, begun := map[uint64]bool{}, time.Now()
	for ; time.Since(begun) < 2*time.Second; time.Sleep(5 * time.Millisecond) { // between looks
		for _, at := range looks(t, dir) {
			seen[at] = true
		}
	}
	// Each process would look once a second. All may look at the same time after a pause of a busy machine.
	if all := int(time.Since(begun).Seconds() * processes); len(seen) > all/2 {
		t.Errorf("%d processes have looked up the leases %d times in %v", processes, len(seen), time.Since(begun))
	}
	index := clustertest.List(t, stores[0], cluster.Span{}).Index
	holder.Kill()
	if changes, err := stores[0].Watch(t.Context(), "k/", index); err != nil || len(changes.Keys) != 2 {
		t.Errorf("got %+v, %v", changes, err)
	}
}

// looks returns when processes have looked up the leases, in milliseconds, as their locks note it.
func looks(t *testing.T, dir string) (times []uint64) {
	t.Helper()
	var is unix.Stat_t
	must.OK(t, unix.Stat(filepath.Join(dir, "leases"), &is))
	for line := range strings.Lines(string(must.Get(os.ReadFile("/proc/locks"))(t))) {
		f := strings.Fields(line) // 1: OFDLCK ADVISORY READ -1 MAJOR:MINOR:INODE START END
		if len(f) != 8 || !strings.HasSuffix(f[5], fmt.Sprint(":", is.Ino)) {
			continue
		}
		if at, err := strconv.ParseUint(f[6], 10, 64); err == nil && at > 1<<62 {
			times = append(times, at)
		}
	}
	return times
}

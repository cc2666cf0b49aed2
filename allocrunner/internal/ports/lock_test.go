package ports_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/ports"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// locked has a port locked and not bound, so that nothing but the port lock keeps others away.
func locked(hostIP string, port int) (*ports.Reservation, error) {
	return lockedFor("", hostIP, port)
}

// lockedFor locks it for an owner. A port lock that is not to be had is the error.
func lockedFor(owner, hostIP string, port int) (*ports.Reservation, error) {
	return lockedBeside(nil, owner, hostIP, port)
}

// lockedBeside is lockedFor where processes of the owners are left that left names.
func lockedBeside(left func(string) bool, owner, hostIP string, port int) (*ports.Reservation, error) {
	networks := static("x", port)
	held := []api.PortMapping{{Label: "x", Value: port}}
	r, err := ports.Reacquire(ports.Config{HostIP: hostIP, Networks: networks, Owner: owner, Left: left}, held)
	if err == nil && len(r.Warnings()) > 0 {
		err = r.Warnings()[0]
		r.Close()
	}
	return r, err
}

func TestOnePortOnTwoAddresses(t *testing.T) {
	port := freePort(t)
	first := newReservation(t, ports.Config{HostIP: "127.0.0.1", Networks: static("web", port)})
	second := newReservation(t, ports.Config{HostIP: "127.0.0.2", Networks: static("web", port)})
	third := newReservation(t, ports.Config{HostIP: "127.0.0.3", Networks: dynamic("web"), First: port, Last: port})
	for i, r := range []*ports.Reservation{first, second, third} {
		address := fmt.Sprintf("127.0.0.%d:%d", i+1, port)
		if got := r.Mappings()[0]; net.JoinHostPort(got.HostIP, strconv.Itoa(got.Value)) != address {
			t.Errorf("got %+v, want %s", got, address)
		}
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			t.Errorf("a stranger could listen on %s", address)
		}
		r.ReleaseSockets()
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("the task can't listen: %v", err)
		}
		l.Close()
	}
}

func TestLocksRespectTheAddress(t *testing.T) {
	for _, test := range []struct {
		first, second string
		together      bool
	}{
		{"127.0.0.1", "127.0.0.2", true},
		{"127.0.0.1", "::1", true},
		{"127.0.0.1", "127.0.0.1", false},
		{"::1", "0:0::1", false},
		{"127.0.0.1", "::ffff:127.0.0.1", false},
		{"127.0.0.1", "0.0.0.0", false},
		{"127.0.0.1", "::", false},
		{"127.0.0.1", "::ffff:0.0.0.0", false},
		{"::1", "::", false},
		{"::1", "0.0.0.0", false},
		{"0.0.0.0", "0.0.0.0", false},
		{"0.0.0.0", "::", false},
	} {
		for _, pair := range [][2]string{{test.first, test.second}, {test.second, test.first}} {
			t.Run(strings.Join(pair[:], " "), func(t *testing.T) {
				port := freePort(t)
				first := must.Get(locked(pair[0], port))(t)
				defer first.Close()
				second, err := locked(pair[1], port)
				if test.together {
					must.OK(t, err)
					second.Close()
					return
				}
				same.Error(t, ports.ErrTaken, err)
				first.Close()
				if second, err = locked(pair[1], port); err != nil {
					t.Fatalf("after the first was given up: %v", err)
				}
				second.Close()
			})
		}
	}
}

// However many lock at once, those that succeed can have the port together, and one does succeed.
func TestConcurrentLocks(t *testing.T) {
	addresses := []string{"127.0.0.1", "0.0.0.0", "127.0.0.2", "::", "127.0.0.1", "0.0.0.0", "::1", "127.0.0.3"}
	port := freePort(t)
	for range 200 {
		var mu sync.Mutex
		var got []string
		var open []*ports.Reservation
		var wg sync.WaitGroup
		start := make(chan struct{})
		for _, address := range addresses {
			wg.Go(func() {
				<-start
				r, err := locked(address, port)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					got, open = append(got, address), append(open, r)
				} else if !errors.Is(err, ports.ErrTaken) {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		seen, wildcard := map[string]bool{}, false
		for i, address := range got {
			wildcard = wildcard || netip.MustParseAddr(address).IsUnspecified()
			if seen[address] || wildcard && i > 0 {
				t.Errorf("the port was given to %v together", got)
			}
			seen[address] = true
		}
		if len(got) == 0 {
			t.Error("nobody has the port")
		}
		for _, r := range open {
			r.Close()
		}
	}
}

const (
	lockEnv   = "PORTS_TEST_LOCK"   // what another process locks
	ownerEnv  = "PORTS_TEST_OWNER"  // for whom, if not /theirs
	listenEnv = "PORTS_TEST_LISTEN" // or where it listens
)

// TestOtherProcess is what the other process of a test does. It prints a line when it is ready and lives until it is
// killed.
func TestOtherProcess(t *testing.T) {
	if at := os.Getenv(listenEnv); at != "" {
		l := must.Get(net.Listen("tcp", at))(t)
		defer l.Close()
	} else if at, err := netip.ParseAddrPort(os.Getenv(lockEnv)); err == nil {
		r := must.Get(lockedFor(cmp.Or(os.Getenv(ownerEnv), "/theirs"), at.Addr().String(), int(at.Port())))(t)
		defer r.Close()
	} else {
		t.Skip("a test runs this in another process")
	}
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
}

// startOther starts TestOtherProcess. The function that it returns kills it.
func startOther(t *testing.T, cmd *exec.Cmd, env string) (kill func()) {
	t.Helper()
	cmd.Env = append(os.Environ(), env)
	other := proctest.Start(t, cmd)
	if line, err := other.Stdout.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	return other.Kill
}

// TestLockOfAnotherProcess: the error names the owner of the port. The lock ends when the owner's process was killed
// and no process that it started is left.
func TestLockOfAnotherProcess(t *testing.T) {
	for _, test := range []struct{ theirs, ours string }{{"127.0.0.1", "127.0.0.1"}, {"127.0.0.1", "0.0.0.0"},
		{"0.0.0.0", "127.0.0.1"}} {
		port := freePort(t)
		kill := startOther(t, exec.Command(os.Args[0], "-test.run=^TestOtherProcess$"),
			fmt.Sprintf("%s=%s:%d", lockEnv, test.theirs, port))
		_, err := lockedFor("/ours", test.ours, port)
		if !errors.Is(err, ports.ErrTaken) || test.ours == test.theirs &&
			!strings.Contains(err.Error(), "another allocation in /theirs") {
			t.Errorf("%s beside %s: got %v, want ErrTaken that names the other", test.ours, test.theirs, err)
		}
		if r, err := lockedFor("/theirs", test.theirs, port); err != nil {
			t.Errorf("another process of the same allocation: %v", err)
		} else {
			r.Close()
		}
		kill()
		left := func(owner string) bool { return owner == "/theirs" }
		for range 2 { // to try is not to get it
			_, err := lockedBeside(left, "/ours", test.ours, port)
			same.Says(t, ports.ErrTaken, "another allocation in /theirs",
				err, test.ours, " beside what ", test.theirs, " has left")
		}
		r, err := lockedBeside(left, "/theirs", test.theirs, port)
		if err != nil {
			t.Fatalf("the same allocation, of which processes are left: %v", err)
		}
		r.Close()
		startOther(t, exec.Command(os.Args[0], "-test.run=^TestOtherProcess$"),
			fmt.Sprintf("%s=%s:%d", lockEnv, test.theirs, port))()
		r, err = locked(test.ours, port)
		if err != nil {
			t.Fatalf("%s after %s was killed: %v", test.ours, test.theirs, err)
		}
		r.Close()
	}
}

// TestLockOfAnotherUser decides nothing, whatever that user does: a port that it has not bound can be had.
func TestLockOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	port := freePort(t)
	t.Setenv("TMPDIR", "/tmp") // where every user may write
	startOther(t, asStranger(t, "-test.run=^TestOtherProcess$"), fmt.Sprintf("%s=0.0.0.0:%d", lockEnv, port))
	r := must.Get(locked("127.0.0.1", port))(t)
	r.Close()
}

// TestLocksWhereAnotherUserWasFirst: somebody who has made the directory of a user's port locks in /tmp does not let
// that user's allocations have one port together.
func TestLocksWhereAnotherUserWasFirst(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	port := freePort(t)
	tmp := must.Get(os.MkdirTemp("", "ports"))(t)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	must.OK(t, os.Chmod(tmp, 0o777|os.ModeSticky))
	first, second := asStranger(t, "-test.run=^TestOtherProcess$"), asStranger(t, "-test.run=^TestOtherProcess$")
	blocked := filepath.Join(tmp, fmt.Sprintf("taskapi-%d", first.SysProcAttr.Credential.Uid))
	must.OK(t, os.Mkdir(blocked, 0o700))
	t.Setenv("TMPDIR", tmp)
	t.Setenv("XDG_RUNTIME_DIR", "")
	other := fmt.Sprintf("%s=127.0.0.1:%d", lockEnv, port)
	startOther(t, first, other)
	if err := os.Remove(blocked); err != nil { // which does not part the two either
		t.Fatal(err)
	}
	second.Env = append(os.Environ(), other, ownerEnv+"=/others")
	if out, err := second.CombinedOutput(); !strings.Contains(string(out),
		"is reserved for another allocation in /theirs") {
		t.Errorf("%v: %s", err, out)
	}
}

// copyLocks copies the locks, as the keeper has them.
func copyLocks(t *testing.T, r *ports.Reservation) (closeCopies func()) {
	t.Helper()
	var copies []int
	for _, f := range r.Locks() {
		fd := must.Get(unix.Dup(int(f.Fd())))(t)
		copies = append(copies, fd)
	}
	return func() {
		for _, fd := range copies {
			unix.Close(fd)
		}
	}
}

// TestLocksInAnothersHands hold on when the process that made them has given them up.
func TestLocksInAnothersHands(t *testing.T) {
	port := freePort(t)
	first := must.Get(lockedFor("/ours", "127.0.0.1", port))(t)
	closeCopies := copyLocks(t, first)
	for _, f := range first.Locks() { // as a process that is killed does
		f.Close()
	}
	same.Error(t, ports.ErrTaken, same.Err(lockedFor("/others", "127.0.0.1", port)))
	again := must.Get(lockedFor("/ours", "127.0.0.1", port))(t)
	defer again.Close()
	closeCopies()
	again.Locks() // takes over what nobody has any more
	same.Error(t, ports.ErrTaken, same.Err(lockedFor("/others", "127.0.0.1", port)), "after the other's end")
}

// TestClosedBesideAnother: a process that was given the locks has them when their owner closes its own, and its end
// frees the port.
func TestClosedBesideAnother(t *testing.T) {
	port := freePort(t)
	first := must.Get(lockedFor("/ours", "127.0.0.1", port))(t)
	closeCopies := copyLocks(t, first)
	must.OK(t, first.Close())
	if others, err := lockedFor("/others", "127.0.0.1", port); !errors.Is(err, ports.ErrTaken) {
		t.Errorf("got %v, want ErrTaken", err)
		others.Close()
	}
	closeCopies()
	others := must.Get(lockedFor("/others", "127.0.0.1", port))(t)
	must.OK(t, others.Close())
}

// Who has a port is known by the address.
func TestHolderOfTheAddress(t *testing.T) {
	port := freePort(t)
	l := must.Get(listen(port))(t)
	defer l.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOtherProcess$")
	startOther(t, cmd, fmt.Sprintf("%s=127.0.0.2:%d", listenEnv, port))
	for hostIP, pid := range map[string]int{"127.0.0.1": os.Getpid(), "127.0.0.2": cmd.Process.Pid} {
		_, err := ports.Allocate(ports.Config{HostIP: hostIP, Networks: static("web", port)})
		if !errors.Is(err, ports.ErrTaken) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", pid)) {
			t.Errorf("%s: got %v, want ErrTaken by process %d", hostIP, err, pid)
		}
	}
	six, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here")
	}
	defer six.Close()
	_, err = ports.Allocate(ports.Config{HostIP: "::1", Networks: static("web", six.Addr().(*net.TCPAddr).Port)})
	if !errors.Is(err, ports.ErrTaken) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
		t.Errorf("got %v, want ErrTaken by us", err)
	}
}

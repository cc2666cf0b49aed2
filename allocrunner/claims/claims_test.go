package claims_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func hold(t *testing.T, table claims.Table, name string) *claims.Holder {
	t.Helper()
	h := must.Get(table.Hold(name))(t)
	t.Cleanup(func() { h.Close() })
	return h
}

// refused checks that a claim is refused because of other holders.
func refused(t *testing.T, h *claims.Holder, c claims.Claim, holders ...string) {
	t.Helper()
	err := h.Claim(c)
	held, ok := errors.AsType[*claims.HeldError](err)
	if !ok || !slices.Equal(held.Holders, holders) {
		t.Errorf("%+v: got %v, want it to be held by %v", c, err, holders)
	}
}

func claim(t *testing.T, h *claims.Holder, list ...claims.Claim) {
	t.Helper()
	for _, c := range list {
		must.OK(t, h.Claim(c))
	}
}

var (
	gpu    = claims.Claim{Kind: "device", Name: "nvidia/gpu/a100/GPU-0", For: "train"}
	reader = claims.Claim{Kind: "volume", Name: "data", Shared: true}
	writer = claims.Claim{Kind: "volume", Name: "data"}
)

// TestClaims: an exclusive claim is one holder's, a shared one that of several.
func TestClaims(t *testing.T) {
	table := claims.Table{Dir: filepath.Join(t.TempDir(), "claims")}
	if list, err := table.List(); err != nil || len(list) > 0 {
		t.Fatalf("%v, %v", list, err)
	}
	one, two, three := hold(t, table, "one"), hold(t, table, "two"), hold(t, table, "three")
	claim(t, one, gpu, gpu, reader)
	claim(t, two, reader)
	refused(t, two, gpu, "one")
	refused(t, three, writer, "one", "two")
	list, err := table.List()
	if err != nil || len(list) != 3 || list[0].Holder != "one" || list[0].For != "train" {
		t.Errorf("%+v, %v", list, err)
	}
	must.OK(t, table.Forget("one"))
	refused(t, three, writer, "two")
	must.OK(t, table.Forget("two"))
	claim(t, three, writer, gpu)
	refused(t, hold(t, table, "four"), reader, "three")
	for _, bad := range []string{"", ".", "..", "a/b", "/a"} {
		same.Error(t, claims.ErrInvalid, same.Err(table.Hold(bad)), bad)
	}
}

// TestPaths: who has a directory alone has what is below it, and nobody else has a directory around it.
func TestPaths(t *testing.T) {
	t.Parallel()
	table := claims.Table{Dir: filepath.Join(t.TempDir(), "claims")}
	path := func(name string, shared bool) claims.Claim {
		return claims.Claim{Kind: "volume", Name: name, Shared: shared}
	}
	one, two := hold(t, table, "one"), hold(t, table, "two")
	claim(t, one, path("/srv/data", false))
	for _, name := range []string{"/", "/srv", "/srv/data", "/srv/data/deep/er"} {
		refused(t, two, path(name, true), "one")
	}
	claim(t, two, path("/srv/database", false), path("/srv/dat", false), path("/srv/..data", false))
	three := hold(t, table, "three")
	refused(t, three, path("/srv/dat/x", false), "two")
	claim(t, three, claims.Claim{Kind: "device", Name: "/srv/data"})
}

// TestChoose: a change is made whole or not at all.
func TestChoose(t *testing.T) {
	table := claims.Table{Dir: t.TempDir()}
	must.OK(t, os.Chmod(table.Dir, 0o700))
	one, two := hold(t, table, "one"), hold(t, table, "two")
	claim(t, one, gpu)
	no := errors.New("no")
	if err := two.Change(func(_, _ []claims.Claim) ([]claims.Claim, error) {
		return []claims.Claim{writer}, no
	}); !errors.Is(err, no) {
		t.Error(err)
	}
	if err := two.Change(func(_, _ []claims.Claim) ([]claims.Claim, error) {
		return []claims.Claim{writer, gpu}, nil
	}); err == nil {
		t.Error("two holders have one device")
	}
	if list, err := table.List(); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestRace: of many holders one gets a thing.
func TestRace(t *testing.T) {
	table := claims.Table{Dir: filepath.Join(t.TempDir(), "claims")}
	for round := range 20 {
		var got sync.Map
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				h, err := table.Hold(fmt.Sprintf("%d-%d", round, i))
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { h.Close() })
				err = h.Claim(claims.Claim{Kind: "cpu", Name: fmt.Sprint(round)})
				if err == nil {
					got.Store(i, true)
				} else if _, held := errors.AsType[*claims.HeldError](err); !held {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		count := 0
		got.Range(func(any, any) bool { count++; return true })
		if count != 1 {
			t.Fatalf("%d holders have one thing", count)
		}
	}
}

const holdEnv = "CLAIMS_TEST_HOLD" // what another process holds

// TestOtherProcess is the process of another holder.
func TestOtherProcess(t *testing.T) {
	dir := os.Getenv(holdEnv)
	if dir == "" {
		t.Skip("a test runs this in another process")
	}
	h := hold(t, claims.Table{Dir: dir}, "other")
	claim(t, h, gpu, reader)
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
}

// TestKilledHolder: claims end with the last process that has the holder's lock, and come back if nobody took them.
func TestKilledHolder(t *testing.T) {
	left := true
	table := claims.Table{Dir: filepath.Join(t.TempDir(), "claims"), Left: func(name string) bool {
		return left && name == "other"
	}}
	cmd := exec.Command(os.Args[0], "-test.run=^TestOtherProcess$")
	cmd.Env = append(os.Environ(), holdEnv+"="+table.Dir)
	agent := proctest.Start(t, cmd)
	if line, err := agent.Stdout.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	mine := hold(t, table, "mine")
	refused(t, mine, gpu, "other")
	var lock *os.File // as a keeper has it
	for fd := range 64 {
		path := fmt.Sprintf("/proc/%d/fd/%d", cmd.Process.Pid, fd)
		if target, _ := os.Readlink(path); strings.HasSuffix(target, ".holder") {
			pidfd := must.Get(unix.PidfdOpen(cmd.Process.Pid, 0))(t)
			defer unix.Close(pidfd)
			got, err := unix.PidfdGetfd(pidfd, fd, 0)
			if err != nil {
				t.Skip("this machine lets no process have another's file:", err)
			}
			lock = os.NewFile(uintptr(got), target)
		}
	}
	if lock == nil {
		t.Fatal("the other process has no lock")
	}
	agent.Kill()
	refused(t, mine, gpu, "other")
	lock.Close()
	refused(t, mine, gpu, "other") // a process is left
	left = false
	again := hold(t, table, "other")
	refused(t, mine, gpu, "other") // it goes on with what it had
	again.Close()
	claim(t, mine, gpu)
	again = hold(t, table, "other")
	refused(t, again, gpu, "mine")
	refused(t, mine, writer, "other") // which nobody took from it
	must.OK(t, table.Forget("other"))
	again.Close()
	claim(t, mine, writer)
	entries, err := os.ReadDir(table.Dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("%v, %v: want a lock and two files of one holder", entries, err)
	}
}

// TestDamagedList: a list that can't be read is an error while its holder lives, and only then.
func TestDamagedList(t *testing.T) {
	table := claims.Table{Dir: filepath.Join(t.TempDir(), "claims")}
	one, two := hold(t, table, "one"), hold(t, table, "two")
	claim(t, one, gpu)
	path := filepath.Join(table.Dir, "one.json")
	for _, text := range []string{"{", `[{"kind":"device","color":1}]`} {
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		same.Says(t, nil, path, two.Claim(gpu))
	}
	claim(t, one, gpu)
	refused(t, two, gpu, "one")
	must.OK(t, os.WriteFile(path, []byte("{"), 0o600))
	one.Close()
	claim(t, two, gpu)
	must.OK(t, os.Chmod(table.Dir, 0o755))
	same.Says(t, nil, "chmod 0700", same.Err(table.Hold("three")), "a directory that others can enter")
}

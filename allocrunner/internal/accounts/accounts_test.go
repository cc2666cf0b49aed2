package accounts_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/accounts"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// small is a range that nothing else on the machine is likely to use.
var small = interfaces.IDRange{From: 3000000000, To: 3000000005}

func registry(t *testing.T) accounts.Registry {
	return accounts.Registry{Dir: filepath.Join(t.TempDir(), "taskapi", "users")}
}

func take(t *testing.T, r accounts.Registry, dir string, has accounts.List, tasks ...string) accounts.List {
	t.Helper()
	return must.Get(r.Take(dir, has, false, tasks, small))(t)
}

func numbers(lists ...accounts.List) map[uint32]int {
	found := map[uint32]int{}
	for _, l := range lists {
		found[l.Group]++
		for _, n := range l.Tasks {
			found[n]++
		}
	}
	return found
}

// process starts a process that runs as these users, until the test ends.
func process(t *testing.T, as *syscall.Credential) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// TestNumbersAreOneAllocationsAlone until they are given back, and stay the same for who goes on with it.
func TestNumbersAreOneAllocationsAlone(t *testing.T) {
	proctest.NeedRoot(t)
	r, one, two := registry(t), t.TempDir(), t.TempDir()
	first := take(t, r, one, accounts.List{}, "a", "b")
	second := take(t, r, two, accounts.List{}, "a", "b")
	found := numbers(first, second)
	if len(found) != 6 || found[0] != 0 {
		t.Fatalf("%+v and %+v", first, second)
	}
	if _, err := r.Take(t.TempDir(), accounts.List{}, false, []string{"a"}, small); !errors.Is(err, accounts.ErrNone) {
		t.Errorf("a seventh: %v", err)
	}
	if again := take(t, r, one, first, "a", "b"); !cmp.Equal(again, first) {
		t.Errorf("got %+v, want %+v again", again, first)
	}
	must.OK(t, r.Release(one))
	third := take(t, r, t.TempDir(), accounts.List{}, "x", "y")
	if found := numbers(second, third); len(found) != 6 {
		t.Errorf("%+v and %+v", second, third)
	}
	if _, err := r.Take(one, first, false, []string{"a", "b"}, small); !errors.Is(err, accounts.ErrNone) {
		t.Errorf("what is another allocation's by now: %v", err)
	}
}

// TestMachineRestarts: the registry is empty, and the allocation's own list counts.
func TestMachineRestarts(t *testing.T) {
	proctest.NeedRoot(t)
	before, dir := registry(t), t.TempDir()
	list := take(t, before, dir, accounts.List{}, "a", "b")
	must.OK(t, list.Save(dir))
	loaded, err := accounts.Load(dir)
	if err != nil || !cmp.Equal(loaded, list) {
		t.Fatalf("%+v, %v", loaded, err)
	}
	after := registry(t)
	if got := take(t, after, dir, loaded, "b", "c"); got.Group != list.Group || got.Tasks["a"] != list.Tasks["a"] ||
		got.Tasks["b"] != list.Tasks["b"] ||
		got.Tasks["c"] == 0 {
		t.Errorf("got %+v, had %+v", got, list)
	}
}

// TestStickyNumbers belong to the allocation that has the list, also while it moves, after the end and after a reboot.
func TestStickyNumbers(t *testing.T) {
	proctest.NeedRoot(t)
	for name, reboots := range map[string]bool{"no reboot": false, "reboot": true} {
		t.Run(name, func(t *testing.T) {
			r, all := registry(t), t.TempDir()
			one, two, other := filepath.Join(all, "one"), filepath.Join(all, "two"), filepath.Join(all, "other")
			must.OK(t, errors.Join(os.Mkdir(one, 0o700), os.MkdirAll(two+"/.sticky", 0o700), os.Mkdir(other, 0o700)))
			list := take(t, r, one, accounts.List{}, "a", "b")
			list.Sticky = true
			must.OK(t, list.Save(one))
			if reboots {
				r = registry(t)
			}
			at := one
			for _, next := range []string{two + "/.sticky", two} {
				must.OK(t, os.Rename(at+"/users.json", next+"/users.json"))
				at = next
				_, err := r.Take(other, accounts.List{}, false, []string{"a", "b", "c"}, small)
				same.Error(t, accounts.ErrNone, err, "another one gets a number of the list in ", at)
			}
			got := take(t, r, two, list, "a", "b")
			if got.Sticky = true; !cmp.Equal(got, list) {
				t.Errorf("got %+v, want %+v", got, list)
			}
		})
	}
}

// TestUsedNumbersAreNotTaken: neither those of processes, nor those of an allocation that is gone and left one.
func TestUsedNumbersAreNotTaken(t *testing.T) {
	proctest.NeedRoot(t)
	process(t, &syscall.Credential{Uid: small.From, Gid: small.From + 1, Groups: []uint32{small.From + 2}})
	r, dir := registry(t), filepath.Join(t.TempDir(), "gone")
	list := take(t, r, dir, accounts.List{}, "a", "b")
	for n := range numbers(list) {
		if n < small.From+3 || n > small.To {
			t.Errorf("%d is taken", n)
		}
	}
	other := process(t, &syscall.Credential{Uid: list.Tasks["a"], Gid: list.Tasks["a"]})
	must.OK(t, r.Release(dir))
	if _, err := r.Take(t.TempDir(), accounts.List{}, false, []string{"x", "y"}, small); !errors.Is(err,
		accounts.ErrNone) {
		t.Errorf("the number of a process that is left: %v", err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	take(t, r, t.TempDir(), accounts.List{}, "x", "y")
}

// TestAMovedDirectory keeps the numbers that its tasks run with; a copy has its own as long as the original is there.
func TestAMovedDirectory(t *testing.T) {
	proctest.NeedRoot(t)
	r, dir, moved := registry(t), t.TempDir(), t.TempDir()
	list := take(t, r, dir, accounts.List{}, "a")
	process(t, &syscall.Credential{Uid: list.Tasks["a"], Gid: list.Tasks["a"], Groups: []uint32{list.Group}})
	for _, runs := range []bool{false, true} {
		if got, err := r.Take(moved, list, runs, []string{"a"}, small); err != nil || len(numbers(got, list)) != 4 {
			t.Errorf("the copy of one that is there has %+v, %v; that one has %+v", got, err, list)
		}
	}
	must.OK(t, os.Remove(dir))
	if got, err := r.Take(moved, list, false, []string{"a"}, small); err != nil || len(numbers(got, list)) != 4 {
		t.Errorf("one whose tasks don't run has %+v, %v: those of a process that is not its own, %+v", got, err, list)
	}
	back := func(dir string) {
		t.Helper()
		if got, err := r.Take(dir, list, true, []string{"a"}, small); err != nil || !cmp.Equal(got, list) {
			t.Errorf("the moved one has %+v, %v; want %+v", got, err, list)
		}
	}
	back(moved)
	back(moved) // where they are noted by now
	linked := filepath.Join(t.TempDir(), "linked")
	must.OK(t, errors.Join(os.Rename(moved, linked), os.Symlink(filepath.Dir(linked), filepath.Dir(moved)+
		".link")))
	back(linked)
	back(filepath.Join(filepath.Dir(moved)+".link", "linked"))
}

// TestManyAtOnce: allocations that begin together do not get the same numbers.
func TestManyAtOnce(t *testing.T) {
	proctest.NeedRoot(t)
	r := registry(t)
	in := interfaces.IDRange{From: 3000000100, To: 3000000199}
	var all sync.WaitGroup
	lists := make([]accounts.List, 20)
	for i := range lists {
		dir := t.TempDir()
		all.Go(func() {
			var err error
			if lists[i], err = r.Take(dir, accounts.List{}, false, []string{"a", "b"}, in); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if found := numbers(lists...); len(found) != 60 {
		t.Errorf("%d numbers for 60", len(found))
	}
}

// TestFreedNumberOfOthers: what somebody else uses by now is not taken again for an allocation of which no task runs,
// and is for one that may have left the process itself.
func TestFreedNumberOfOthers(t *testing.T) {
	proctest.NeedRoot(t)
	r, dir := registry(t), t.TempDir()
	list := take(t, r, dir, accounts.List{}, "a")
	must.OK(t, r.Release(dir))
	process(t, &syscall.Credential{Uid: list.Tasks["a"], Gid: list.Group})
	if got := take(t, r, dir, list, "a"); got.Tasks["a"] == list.Tasks["a"] || got.Group == list.Group {
		t.Errorf("got %+v again, which somebody else uses", list)
	}
	must.OK(t, r.Release(dir))
	got, err := r.Take(dir, list, true, []string{"a"}, small)
	if err != nil || !cmp.Equal(got, list) {
		t.Errorf("its tasks run: got %+v, %v, want %+v", got, err, list)
	}
}

// TestFullDisk refuses no numbers that are taken already, and what could not be taken as a whole is not taken.
func TestFullDisk(t *testing.T) {
	proctest.NeedRoot(t)
	parent := disktest.Mount(t, "nr_inodes=6,mode=755").Dir
	// with root, lock and users there is room for three
	r, dir := accounts.Registry{Dir: filepath.Join(parent, "users")}, t.TempDir()
	if _, err := r.Take(t.TempDir(), accounts.List{}, false, []string{"a", "b", "c"}, small); !errors.Is(err,
		syscall.ENOSPC) {
		t.Fatalf("four numbers: %v", err)
	}
	list := take(t, r, dir, accounts.List{}, "a", "b")
	if got := take(t, r, dir, list, "a", "b"); !cmp.Equal(got, list) {
		t.Errorf("got %+v, had %+v", got, list)
	}
}

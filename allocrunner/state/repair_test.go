package state_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func repair(t *testing.T, path string) *state.Repaired {
	t.Helper()
	r, err := state.Repair(path, "2.0", noon)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRepairOfOneValue(t *testing.T) {
	path, versions := lived(t)
	data := readFile(t, path)
	data.spoil("task/u", true) // the last change, of which the pages that were in use before are free and not yet used again
	writeFile(t, path, data)

	if _, err := state.Open(path, ""); !errors.Is(err, state.ErrDamaged) || !strings.Contains(err.Error(), `the checksum of "task/u" is wrong`) {
		t.Errorf("open: %v", err)
	}
	held, err := state.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(held.Problems) != 1 || held.Version != "1.2.3" || held.Allocs["a"].Alloc.ModifyIndex != 13 {
		t.Errorf("inspect: %+v", held)
	}
	r := repair(t, path)
	if len(r.Problems) != 1 {
		t.Errorf("problems: %v", r.Problems)
	}
	r.Problems = nil
	diff(t, "repaired", &state.Repaired{KeptAs: path + ".damaged-20260102T120000Z", Allocs: []string{"a"},
		Earlier: []string{`allocation a: task "u"`}}, r)
	if kept := readFile(t, r.KeptAs); !bytes.Equal(kept, data) {
		t.Error("the damaged file is not as it was")
	}
	got, err := state.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if asJSON(t, got) == versions[1] || got.Tasks["u"].State == nil {
		t.Errorf("the task has to be an earlier one: %s", asJSON(t, got.Tasks["u"]))
	}
	if _, err := state.Repair(path, "", noon); !errors.Is(err, state.ErrWhole) {
		t.Errorf("once more: %v, want ErrWhole", err)
	}
	entries, _ := os.ReadDir(filepath.Dir(path))
	if len(entries) != 2 {
		t.Errorf("beside the file lie %v", entries)
	}
}

// TestRepairWithoutStructure: with both meta pages gone nothing but the frames says what is in the file.
func TestRepairWithoutStructure(t *testing.T) {
	path, versions := lived(t)
	data := readFile(t, path)
	clear(data[:2*pageSize])
	writeFile(t, path, data)
	if r := repair(t, path); len(r.Lost) != 0 || !slices.Contains(r.Earlier, "allocation a: job") {
		t.Errorf("%+v", r)
	}
	got, err := state.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "what was put last", versions[1], asJSON(t, got))
}

func TestRepairNamesWhatIsLost(t *testing.T) {
	path, _ := lived(t)
	data := readFile(t, path)
	data.spoil("task/u", false)
	writeFile(t, path, data)
	r := repair(t, path)
	diff(t, "lost", []string{`allocation a: task "u"`}, r.Lost)
	db := open(t, path)
	put(t, db, interfaces.Change{ID: "a", Tasks: map[string]interfaces.SavedTask{"u": task("anew")}})
	if got := saved(t, db, "a"); len(got.Tasks) != 2 || got.Alloc.Job == nil {
		t.Errorf("after the repair: %s", asJSON(t, got))
	}
}

func TestNoRepairWithoutTheJob(t *testing.T) {
	for _, key := range []string{"job", "alloc"} {
		path, _ := lived(t)
		data := readFile(t, path)
		data.spoil(key, false)
		writeFile(t, path, data)
		if _, err := state.Repair(path, "", noon); !errors.Is(err, state.ErrLost) {
			t.Errorf("%s: got %v, want ErrLost", key, err)
		}
		if !bytes.Equal(readFile(t, path), data) {
			t.Errorf("%s: the file has been touched", key)
		}
		held, err := state.Inspect(path)
		if err != nil || len(held.Allocs["a"].Tasks) != 2 {
			t.Errorf("%s: inspect: %+v, %v", key, held, err)
		}
	}
}

func TestRepairFailsOnWhatIsNotThere(t *testing.T) {
	if _, err := state.Repair(statePath(t), "", noon); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	path := statePath(t)
	setMeta(t, path, "format", "3", "version", "9.1", "sum", sum("3\x009.1"))
	if _, err := state.Repair(path, "", noon); !errors.Is(err, state.ErrNewer) {
		t.Errorf("got %v, want ErrNewer", err)
	}
}

// A moving file is one that two transactions write to while it is read for the first time.
type moving struct {
	*os.File // for its size
	torn     file
	after    file
	reads    int
}

func (m *moving) ReadAt(p []byte, at int64) (int, error) {
	from := m.after
	if m.reads++; m.reads == 1 {
		from = m.torn
	}
	return copy(p, from[at:]), nil
}

func TestCopyOfTwoMomentsIsMadeAnew(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	version := func(i uint64) file {
		put(t, db, interfaces.Change{ID: "a", Alloc: alloc("a", i)})
		return readFile(t, path)
	}
	before, _, after := version(1), version(2), version(3)
	if len(before) != len(after) {
		t.Fatal("the file has grown, which this test does not need")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	torn := append(before[:2*pageSize:2*pageSize], after[2*pageSize:]...)
	data, problems, err := state.Snapshot(&moving{File: f, torn: torn, after: after})
	if err != nil || problems != nil || !bytes.Equal(data, after) {
		t.Errorf("%v, %v; the copy is as the file %v, as at first %v", err, problems, bytes.Equal(data, after), bytes.Equal(data, torn))
	}
}

// TestInspectWhileItIsWritten: every copy is of one moment.
func TestInspectWhileItIsWritten(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	both := func(i uint64) interfaces.Change {
		return interfaces.Change{ID: "a", Alloc: alloc("a", i), Tasks: map[string]interfaces.SavedTask{"t": {Attempts: int(i)}}}
	}
	put(t, db, both(0))
	var writer sync.WaitGroup
	defer writer.Wait()
	stop := make(chan struct{})
	defer close(stop)
	writer.Go(func() {
		for i := uint64(1); ; i++ {
			select {
			case <-stop:
				return
			default:
				put(t, db, both(i))
			}
		}
	})
	for range 200 {
		held, err := state.Inspect(path)
		if err != nil {
			t.Fatal(err)
		}
		got := held.Allocs["a"]
		if len(held.Problems) > 0 || got.Alloc.ModifyIndex != uint64(got.Tasks["t"].Attempts) {
			t.Fatalf("%v; of two moments: %d and %d", held.Problems, got.Alloc.ModifyIndex, got.Tasks["t"].Attempts)
		}
	}
}

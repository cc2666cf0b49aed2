package state_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func repair(t *testing.T, path string) *state.Repaired {
	t.Helper()
	return must.Get(state.Repair(path, "2.0", noon))(t)
}

func TestRepairOfOneValue(t *testing.T) {
	path, latest := lived(t)
	data := readFile(t, path)
	data.spoil("task/u", true)
	writeFile(t, path, data)

	same.Says(t, state.ErrDamaged, `the checksum of "task/u" is wrong`, same.Err(state.Open(path, "")), "open")
	dump := must.Get(state.Inspect(path))(t)
	if len(dump.Problems) != 1 || dump.Version != "1.2.3" || dump.Saved.Alloc.ModifyIndex != 13 {
		t.Errorf("inspect: %+v", dump)
	}
	r := repair(t, path)
	if len(r.Problems) != 1 {
		t.Errorf("problems: %v", r.Problems)
	}
	r.Problems = nil
	diff(t, "repaired", &state.Repaired{KeptAs: path + ".damaged-20260102T120000Z",
		Stale: []string{`task "u"`}}, r)
	if kept := readFile(t, r.KeptAs); !bytes.Equal(kept, data) {
		t.Error("the damaged file is not as it was")
	}
	got := must.Get(state.Read(path))(t)
	if asJSON(t, got) == latest || got.Tasks["u"].State == nil {
		t.Errorf("the task has to be an earlier one: %s", asJSON(t, got.Tasks["u"]))
	}
	same.Error(t, state.ErrUndamaged, same.Err(state.Repair(path, "", noon)), "once more")
	entries, _ := os.ReadDir(filepath.Dir(path))
	if len(entries) != 2 {
		t.Errorf("beside the file lie %v", entries)
	}
}

// TestRepairWithoutHeader: the records alone are enough.
func TestRepairWithoutHeader(t *testing.T) {
	path, latest := lived(t)
	data := readFile(t, path)
	clear(data[:state.HeaderSize])
	writeFile(t, path, data)
	if r := repair(t, path); len(r.Lost)+len(r.Stale) != 0 {
		t.Errorf("%+v", r)
	}
	got := must.Get(state.Read(path))(t)
	diff(t, "what was put last", latest, asJSON(t, got))
}

// TestRepairOfAHole: where part of the file is gone, any value that was saved before may be stale.
func TestRepairOfAHole(t *testing.T) {
	path, _ := lived(t)
	data := readFile(t, path)
	last := data.records("task/u")[0]
	clear(data[last.At-100 : last.At+100])
	writeFile(t, path, data)
	if r := repair(t, path); !slices.Contains(r.Stale, `task "u"`) || !slices.Contains(r.Stale, `task "t"`) ||
		!slices.Contains(r.Stale, "job") {
		t.Errorf("%+v", r)
	}
}

func TestRepairNamesWhatIsLost(t *testing.T) {
	path, _ := lived(t)
	data := readFile(t, path)
	data.spoil("task/u", false)
	writeFile(t, path, data)
	r := repair(t, path)
	diff(t, "lost", []string{`task "u"`}, r.Lost)
	db := open(t, path)
	put(t, db, interfaces.Saved{Tasks: map[string]interfaces.SavedTask{"u": task("again")}})
	if got := load(t, db); len(got.Tasks) != 2 || got.Alloc.Job == nil {
		t.Errorf("after the repair: %s", asJSON(t, got))
	}
}

func TestNoRepairWithoutTheJob(t *testing.T) {
	for _, key := range []string{"job", "alloc"} {
		path, _ := lived(t)
		data := readFile(t, path)
		data.spoil(key, false)
		writeFile(t, path, data)
		same.Error(t, state.ErrLost, same.Err(state.Repair(path, "", noon)), key)
		if !bytes.Equal(readFile(t, path), data) {
			t.Errorf("%s: the file has been touched", key)
		}
		dump, err := state.Inspect(path)
		if err != nil || len(dump.Saved.Tasks) != 2 {
			t.Errorf("%s: inspect: %+v, %v", key, dump, err)
		}
	}
}

func TestRepairFailsOnWhatIsNotThere(t *testing.T) {
	same.Error(t, state.ErrNotFound, same.Err(state.Repair(statePath(t), "", noon)))
	path := statePath(t)
	writeFile(t, path, newer())
	same.Error(t, state.ErrNewer, same.Err(state.Repair(path, "", noon)))
}

// TestInspectWhileItIsWritten: every look sees the state of one moment.
func TestInspectWhileItIsWritten(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	both := func(i uint64) interfaces.Saved {
		return interfaces.Saved{Alloc: alloc("a", i),
			Tasks: map[string]interfaces.SavedTask{"t": {Attempts: int(i)}}}
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
		dump := must.Get(state.Inspect(path))(t)
		got := dump.Saved
		if len(dump.Problems) > 0 || got.Alloc.ModifyIndex != uint64(got.Tasks["t"].Attempts) {
			t.Fatalf("%v; of two moments: %d and %d", dump.Problems, got.Alloc.ModifyIndex, got.Tasks["t"].Attempts)
		}
	}
}

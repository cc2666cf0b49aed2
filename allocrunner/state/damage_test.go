package state_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// file is the bytes of a state file.
type file []byte

func readFile(t testing.TB, path string) file {
	t.Helper()
	data := must.Read(t, path)
	return data
}

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	must.OK(t, os.WriteFile(path, data, 0o600))
}

// seal makes a header valid after a change.
func seal(header []byte) {
	sum := crc32.Checksum(header[:12], castagnoli)
	binary.BigEndian.PutUint32(header[12:], crc32.Update(sum, castagnoli, header[16:state.HeaderSize]))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// records are where the versions of a value are, the newest first.
func (f file) records(key string) []state.Found {
	all := slices.DeleteFunc(state.Records(f), func(x state.Found) bool { return x.Key != key })
	slices.SortFunc(all, func(a, b state.Found) int { return int(b.TxID) - int(a.TxID) })
	return all
}

// spoil flips a bit in every version of a value, or in the newest one.
func (f file) spoil(key string, newestOnly bool) {
	all := f.records(key)
	for _, x := range all {
		if !newestOnly || x.TxID == all[0].TxID {
			f[x.At+x.Size/2] ^= 1
		}
	}
}

// lived returns a closed file with many changes, and what was saved last.
func lived(t testing.TB) (path, latest string) {
	path = statePath(t)
	db := open(t, path)
	const more = 5000 // than a page
	a := alloc("a", 1)
	a.Job = jobOf("j", more)
	put(t, db, interfaces.Saved{Alloc: a})
	for i := range 12 {
		a := alloc("a", uint64(i+2))
		a.Job = jobOf("j", more)
		put(t, db, interfaces.Saved{Alloc: a, Tasks: map[string]interfaces.SavedTask{
			[]string{"t", "u"}[i%2]: task(strings.Repeat("phase ", 1+i*60)),
		}})
	}
	latest = asJSON(t, load(t, db))
	must.OK(t, db.Close())
	return path, latest
}

func asJSON(t testing.TB, value any) string {
	t.Helper()
	data := must.Get(json.Marshal(value))(t)
	return string(data)
}

// damages are ways to damage a file.
var damages = map[string]func(*rand.Rand, file) file{
	"bit": func(r *rand.Rand, f file) file {
		f[r.IntN(len(f))] ^= 1 << r.IntN(8)
		return f
	},
	"header of a record": func(r *rand.Rand, f file) file {
		all := state.Records(f)
		f[all[r.IntN(len(all))].At+r.IntN(26)] ^= 1 << r.IntN(8)
		return f
	},
	"sector of zeros": func(r *rand.Rand, f file) file {
		clear(f[r.IntN(len(f)/512)*512:][:512])
		return f
	},
	"sector of noise": func(r *rand.Rand, f file) file {
		at := r.IntN(len(f)/512) * 512
		for i := range 512 {
			f[at+i] = byte(r.Uint32())
		}
		return f
	},
	"cut short": func(r *rand.Rand, f file) file { return f[:r.IntN(len(f))] },
	"sector in another's place": func(r *rand.Rand, f file) file {
		n := len(f) / 512
		copy(f[r.IntN(n)*512:][:512], f[r.IntN(n)*512:])
		return f
	},
	"record in another's place": func(r *rand.Rand, f file) file {
		all := state.Records(f)
		a, b := all[r.IntN(len(all))], all[r.IntN(len(all))]
		copy(f[a.At:], f[b.At:b.At+b.Size])
		return f
	},
	// Such a header has a valid checksum: only what it says is wrong.
	"header that lies": func(r *rand.Rand, f file) file {
		binary.BigEndian.PutUint64(f[16:], r.Uint64()>>r.IntN(64))
		seal(f)
		return f
	},
}

var closedSet = []error{state.ErrNotFound, state.ErrDamaged, state.ErrNewer, state.ErrOlder}

func inClosedSet(err error) bool {
	return slices.ContainsFunc(closedSet, func(e error) bool { return errors.Is(err, e) })
}

// TestDamageIsAnErrorAndNeverWrong: however a file is damaged, reading it returns what was put last or an error, and
// nothing panics.
func TestDamageIsAnErrorAndNeverWrong(t *testing.T) {
	path, latest := lived(t)
	whole := readFile(t, path)
	for _, name := range slices.Sorted(maps.Keys(damages)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := scratch(t)
			for seed := range uint64(12) { // the fuzz test goes on
				path := filepath.Join(dir, fmt.Sprint(seed))
				writeFile(t, path, damages[name](rand.New(rand.NewPCG(seed, 0)), slices.Clone(whole)))
				got, err := state.Read(path)
				if err != nil && !inClosedSet(err) {
					t.Fatalf("seed %d: %v is not in the closed set", seed, err)
				}
				if err == nil && asJSON(t, got) != latest {
					t.Fatalf("seed %d: read something else than was put last: %.60s", seed, asJSON(t, got))
				}
				useDamaged(t, seed, path, latest, err)
			}
		})
	}
}

// useDamaged opens, inspects and repairs a file. readErr is the error of reading it.
func useDamaged(t *testing.T, seed uint64, path, latest string, readErr error) {
	t.Helper()
	dump, err := state.Inspect(path)
	if err != nil && !inClosedSet(err) || err == nil && (len(dump.Problems) > 0) != errors.Is(readErr,
		state.ErrDamaged) {
		t.Fatalf("seed %d: inspect: %+v, %v, after %v", seed, dump, err, readErr)
	}
	switch db, err := state.Open(path, ""); {
	case errors.Is(readErr, state.ErrNotFound): // cut down to nothing: Open makes a new one
		db.Close()
		return
	case (err == nil) != (readErr == nil):
		t.Fatalf("seed %d: opened: %v, but read: %v", seed, err, readErr)
	case err == nil:
		if got := asJSON(t, load(t, db)); got != latest {
			t.Fatalf("seed %d: loaded something else than was put last: %.60s", seed, got)
		}
		put(t, db, interfaces.Saved{Alloc: alloc("a", 99)})
		db.Close()
		if _, err := state.Read(path); err != nil {
			t.Fatalf("seed %d: after a write: %v", seed, err)
		}
		return
	}
	if !errors.Is(readErr, state.ErrDamaged) {
		return
	}
	repaired, err := state.Repair(path, "", time.Unix(0, 0))
	if errors.Is(err, state.ErrLost) {
		return
	}
	if err != nil {
		t.Fatalf("seed %d: repair: %v", seed, err)
	}
	got, err := state.Read(path)
	if err != nil {
		t.Fatalf("seed %d: after a repair %+v: %v", seed, repaired, err)
	}
	if len(repaired.Stale)+len(repaired.Lost) == 0 && asJSON(t, got) != latest {
		t.Fatalf("seed %d: the repair says that nothing is lost, and has %.60s", seed, asJSON(t, got))
	}
}

// TestCrashBeforeTheFirstPut: taskapi or the machine may crash before anything was put. The allocation can begin then.
func TestCrashBeforeTheFirstPut(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	must.OK(t, db.Close())
	begun := readFile(t, path)
	if len(begun) == 0 {
		t.Error("the file is empty, as that of an allocation whose state was removed")
	}
	for name, data := range map[string][]byte{
		"taskapi crashed": begun, "all is lost": nil, "zeros are left": make([]byte, len(begun)),
	} {
		writeFile(t, path, data)
		same.Error(t, state.ErrNotFound, same.Err(state.Read(path)), name, ": read")
		db := open(t, path)
		put(t, db, interfaces.Saved{Alloc: alloc("a", 1)})
		if got := load(t, db); got.Alloc.ID != "a" {
			t.Errorf("%s: got %+v", name, got.Alloc)
		}
		must.OK(t, db.Close())
	}
	writeFile(t, path, make([]byte, len(readFile(t, path))))
	same.Error(t, state.ErrDamaged, same.Err(state.Read(path)), "zeros where something was put")
}

// TestDamageThatDoesNoHarm: a damaged value is no error when there is a later one.
func TestDamageThatDoesNoHarm(t *testing.T) {
	path, latest := lived(t)
	data := readFile(t, path)
	versions := data.records("task/u")
	for _, old := range versions[1:] {
		data[old.At+old.Size-1] ^= 1
	}
	writeFile(t, path, data)
	got, err := state.Read(path)
	if err != nil || len(versions) < 2 {
		t.Fatalf("%d versions, %v", len(versions), err)
	}
	diff(t, "read", latest, asJSON(t, got))
}

// TestCutOffWritesDontMix: the machine fails in the middle of a write, and all of it is there but its beginning. Open
// removes this rest before anything is written in its place. So the two writes never mix, even when the machine fails
// again. The tests of package logfile cut writes off at each byte, and flip each bit.
func TestCutOffWritesDontMix(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	put(t, db, interfaces.Saved{Alloc: alloc("a", 1)})
	before := readFile(t, path)
	put(t, db, interfaces.Saved{Alloc: alloc("a", 2)})
	db.Close()
	left := readFile(t, path)
	left[len(before)] ^= 1
	copy(left, before[:state.HeaderSize])
	writeFile(t, path, left)
	open(t, path)
	if after := readFile(t, path); !slices.Equal(after, before) {
		t.Errorf("the file has %d bytes, or others than the %d before the write", len(after), len(before))
	}
}

// TestDamageUnderAnOpenFile: another program cuts short a file that is owned.
func TestDamageUnderAnOpenFile(t *testing.T) {
	path, _ := lived(t)
	synctest.Test(t, func(t *testing.T) { damageOpenFile(t, path) }) // who is not let in waits a moment
}

func damageOpenFile(t *testing.T, path string) {
	db := open(t, path)
	whole := readFile(t, path)
	must.OK(t, os.Truncate(path, 1000))
	change := interfaces.Saved{Tasks: map[string]interfaces.SavedTask{"t": task("kept")}}
	for range 3 {
		if err := db.Put(change); !errors.Is(err, state.ErrDamaged) {
			t.Fatalf("put: %v", err)
		}
		if _, err := db.Load(); !errors.Is(err, state.ErrDamaged) {
			t.Fatalf("load: %v", err)
		}
	}
	if _, err := state.Open(path, ""); !errors.Is(err, state.ErrInUse) {
		t.Fatalf("another let in: %v", err)
	}
	writeFile(t, path, whole)
	if err := db.Put(change); err != nil {
		t.Fatalf("with the file as it was: %v", err)
	}
	diff(t, "task", task("kept"), load(t, db).Tasks["t"])
	if _, err := state.Open(path, ""); !errors.Is(err, state.ErrInUse) {
		t.Fatalf("another let in: %v", err)
	}
}

func FuzzFile(f *testing.F) {
	path := statePath(f)
	db := open(f, path)
	put(f, db, interfaces.Saved{Alloc: alloc("a", 1),
		Tasks: map[string]interfaces.SavedTask{"t": task("x")}})
	db.Close()
	f.Add([]byte(readFile(f, path)))
	f.Add([]byte{})
	dir := scratch(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= state.HeaderSize {
			seal(data) // or nothing gets past the checksum
		}
		path := filepath.Join(dir, "fuzz")
		writeFile(t, path, data)
		_, readErr := state.Read(path)
		_, inspectErr := state.Inspect(path)
		for _, err := range []error{readErr, inspectErr} {
			if err != nil && !inClosedSet(err) {
				t.Errorf("%v is not in the closed set", err)
			}
		}
		if db, err := state.Open(path, ""); err == nil {
			db.Close()
		}
	})
}

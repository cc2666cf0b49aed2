package state_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
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
)

func sum(text string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

var pageSize = os.Getpagesize() // bbolt's choice for a new file

// file is the bytes of a state file.
type file []byte

func readFile(t testing.TB, path string) file {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// changed counts the pages that are not as they were.
func (f file) changed(was file) int {
	n := 0
	was = append(was, make(file, max(0, len(f)-len(was)))...) // a file grows by pages of zeros
	for at := 0; at < len(f); at += pageSize {
		if !bytes.Equal(f[at:at+pageSize], was[at:at+pageSize]) {
			n++
		}
	}
	return n
}

func (f file) meta(i int) []byte { return f[i*pageSize+16:][:64] }

// newest is the meta page of the last transaction.
func (f file) newest() []byte {
	if binary.NativeEndian.Uint64(f.meta(1)[48:]) > binary.NativeEndian.Uint64(f.meta(0)[48:]) {
		return f.meta(1)
	}
	return f.meta(0)
}

// seal makes a meta page valid after a change.
func seal(meta []byte) {
	h := fnv.New64a()
	h.Write(meta[:56])
	binary.NativeEndian.PutUint64(meta[56:], h.Sum64())
}

// frames are where the versions of a value are, the newest first.
func (f file) frames(key string) []state.Found {
	all := slices.DeleteFunc(state.Frames(f), func(x state.Found) bool { return x.Key != key })
	slices.SortFunc(all, func(a, b state.Found) int { return int(b.TxID) - int(a.TxID) })
	return all
}

// spoil flips a bit in every version of a value, or in every copy of the newest one: bbolt copies a page when another value in it changes.
func (f file) spoil(key string, newestOnly bool) {
	all := f.frames(key)
	for _, x := range all {
		if !newestOnly || x.TxID == all[0].TxID {
			f[x.At+x.Size/2] ^= 1
		}
	}
}

// lived is a closed file that a runner has written for a while, and what it had at its end and one change before.
func lived(t testing.TB) (path string, versions [2]string) {
	path = statePath(t)
	db := open(t, path)
	const more = 5000 // than a page
	a := alloc("a", 1)
	a.Job = jobOf("j", more)
	put(t, db, interfaces.Change{ID: "a", Alloc: a})
	for i := range 12 {
		a := alloc("a", uint64(i+2))
		a.Job = jobOf("j", more)
		put(t, db, interfaces.Change{ID: "a", Alloc: a, Tasks: map[string]interfaces.SavedTask{
			[]string{"t", "u"}[i%2]: task(strings.Repeat("phase ", 1+i*60)),
		}})
		versions[0], versions[1] = versions[1], asJSON(t, saved(t, db, "a"))
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path, versions
}

func asJSON(t testing.TB, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// damages are the ways in which files come to harm.
var damages = map[string]func(*rand.Rand, file) file{
	"bit": func(r *rand.Rand, f file) file {
		f[r.IntN(len(f))] ^= 1 << r.IntN(8)
		return f
	},
	"page header": func(r *rand.Rand, f file) file {
		f[r.IntN(len(f)/pageSize)*pageSize+r.IntN(16)] ^= 1 << r.IntN(8)
		return f
	},
	"entries of a page": func(r *rand.Rand, f file) file {
		f[r.IntN(len(f)/pageSize)*pageSize+16+r.IntN(64)] = byte(r.Uint32())
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
	"page in another's place": func(r *rand.Rand, f file) file {
		n := len(f) / pageSize
		copy(f[r.IntN(n)*pageSize:][:pageSize], f[r.IntN(n)*pageSize:])
		return f
	},
	// Such a page has a valid checksum: only what it points at is wrong.
	"meta pages that lie": func(r *rand.Rand, f file) file {
		field, value := 16+8*r.IntN(5), r.Uint64N(uint64(2*len(f)/pageSize))
		if r.IntN(4) == 0 {
			value = r.Uint64()
		}
		for i := range 2 {
			binary.NativeEndian.PutUint64(f.meta(i)[field:], value)
			seal(f.meta(i))
		}
		return f
	},
}

func init() {
	damages["bucket elsewhere"] = func(r *rand.Rand, f file) file {
		for _, name := range []string{"alloc/a", "job"} {
			page := uint64(r.IntN(len(f) / pageSize))
			for at := 0; ; at++ { // in all copies
				i := bytes.Index(f[at:], []byte(name))
				if i < 0 {
					break
				}
				at += i
				if root := f[at+len(name):]; len(root) > 8 && binary.NativeEndian.Uint64(root) < uint64(len(f)/pageSize) {
					binary.NativeEndian.PutUint64(root, page)
				}
			}
		}
		return f
	}
	damages["page in use and free"] = func(r *rand.Rand, f file) file {
		free := f[int(binary.NativeEndian.Uint64(f.newest()[32:]))*pageSize:]
		count := int(binary.NativeEndian.Uint16(free[10:]))
		binary.NativeEndian.PutUint64(free[16+8*r.IntN(count):], uint64(r.IntN(len(f)/pageSize)))
		return f
	}
}

var closedSet = []error{state.ErrNotFound, state.ErrDamaged, state.ErrNewer, state.ErrOlder}

func inClosedSet(err error) bool {
	return slices.ContainsFunc(closedSet, func(e error) bool { return errors.Is(err, e) })
}

// TestDamageIsAnErrorAndNeverWrong damages a file in many ways. What is read is what was put, or an error; and nothing dies of it.
func TestDamageIsAnErrorAndNeverWrong(t *testing.T) {
	path, versions := lived(t)
	whole := readFile(t, path)
	for _, name := range slices.Sorted(maps.Keys(damages)) {
		t.Run(name, func(t *testing.T) {
			dir := scratch(t)
			for seed := range uint64(30) {
				path := filepath.Join(dir, fmt.Sprint(seed))
				writeFile(t, path, damages[name](rand.New(rand.NewPCG(seed, 0)), slices.Clone(whole)))
				got, err := state.Read(path)
				if err != nil && !inClosedSet(err) {
					t.Fatalf("seed %d: %v is not in the closed set", seed, err)
				}
				// A meta page that is lost is as one that a crash has torn: the transaction before it counts.
				if err == nil && !slices.Contains(versions[:], asJSON(t, got)) {
					t.Fatalf("seed %d: read something that was never put: %s", seed, asJSON(t, got))
				}
				useDamaged(t, seed, path, versions, err)
			}
		})
	}
}

// useDamaged opens, inspects and repairs a file of which reading has said readErr.
func useDamaged(t *testing.T, seed uint64, path string, versions [2]string, readErr error) {
	t.Helper()
	held, err := state.Inspect(path)
	if err != nil && !inClosedSet(err) || err == nil && (len(held.Problems) > 0) != errors.Is(readErr, state.ErrDamaged) {
		t.Fatalf("seed %d: inspect: %+v, %v, after %v", seed, held, err, readErr)
	}
	switch db, err := state.Open(path, ""); {
	case errors.Is(readErr, state.ErrNotFound): // cut down to nothing: Open makes a new one
		db.Close()
		return
	case (err == nil) != (readErr == nil):
		t.Fatalf("seed %d: opened: %v, but read: %v", seed, err, readErr)
	case err == nil:
		if got := asJSON(t, saved(t, db, "a")); !slices.Contains(versions[:], got) {
			t.Fatalf("seed %d: bbolt reads something that was never put: %s", seed, got)
		}
		put(t, db, interfaces.Change{ID: "a", Alloc: alloc("a", 99)})
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
	if _, err := state.Read(path); err != nil {
		t.Fatalf("seed %d: after a repair %+v: %v", seed, repaired, err)
	}
}

// TestValuesUnderAnothersName: a name that has changed still is a name.
func TestValuesUnderAnothersName(t *testing.T) {
	path, _ := lived(t)
	whole := readFile(t, path)
	for name, other := range map[string]string{"task/t\xf5TAS": "task/s\xf5TAS", "alloc/a": "alloc/b", "alloc/": "bllob/", "job\xf5TAS": "jpb\xf5TAS"} {
		data := bytes.ReplaceAll(whole, []byte(name), []byte(other))
		if bytes.Equal(data, whole) {
			t.Fatalf("%q is not in the file", name)
		}
		writeFile(t, path, data)
		if _, err := state.Read(path); !errors.Is(err, state.ErrDamaged) {
			t.Errorf("%q as %q: got %v, want ErrDamaged", name, other, err)
		}
	}
}

// TestDamageUnderAnOpenFile: bbolt reads through a mapping, where what is gone is a signal.
func TestDamageUnderAnOpenFile(t *testing.T) {
	path, _ := lived(t)
	synctest.Test(t, func(t *testing.T) { damageOpenFile(t, path) }) // who is not let in waits a moment
}

func damageOpenFile(t *testing.T, path string) {
	db := open(t, path)
	whole := readFile(t, path)
	if err := os.Truncate(path, int64(pageSize*2)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		err := db.Put(interfaces.Change{ID: "a", Tasks: map[string]interfaces.SavedTask{"t": task("kept")}})
		if !errors.Is(err, state.ErrDamaged) || !strings.Contains(err.Error(), "kept in memory") || !db.Pending() {
			t.Fatalf("put: %v, pending %v", err, db.Pending())
		}
		if _, err := db.Saved("a"); !errors.Is(err, state.ErrDamaged) {
			t.Fatalf("saved: %v", err)
		}
	}
	if _, err := state.Open(path, ""); !errors.Is(err, state.ErrInUse) {
		t.Fatalf("another let in: %v", err)
	}
	writeFile(t, path, whole)
	if err := db.Retry(); err != nil || db.Pending() {
		t.Fatalf("with the file as it was: %v", err)
	}
	diff(t, "task", task("kept"), saved(t, db, "a").Tasks["t"])
	if _, err := state.Open(path, ""); !errors.Is(err, state.ErrInUse) {
		t.Fatalf("another let in: %v", err)
	}
}

func FuzzFile(f *testing.F) {
	path := statePath(f)
	db := open(f, path)
	put(f, db, interfaces.Change{ID: "a", Alloc: alloc("a", 1), Tasks: map[string]interfaces.SavedTask{"t": task("x")}})
	db.Close()
	f.Add([]byte(readFile(f, path)))
	f.Add([]byte{})
	dir := scratch(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= 2*pageSize {
			seal(file(data).meta(0)) // or nothing gets past the checksum
			seal(file(data).meta(1))
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

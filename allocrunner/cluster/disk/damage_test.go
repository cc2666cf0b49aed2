package disk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/internal/must"
	"taskapi/internal/privatefile"
	"taskapi/internal/safedir"
	"taskapi/internal/same"
)

const headerSize = 128

// filled returns the directory of a closed store, its log before the last commit, and its log after it.
func filled(t testing.TB) (dir string, before, after []byte) {
	t.Helper()
	dir = scratch(t)
	s := disk.New(dir)
	clustertest.Put(t, s, "k", "old")
	clustertest.Put(t, s, "k", "one")
	before = readLog(t, dir)
	clustertest.Commit(t, s, clustertest.Txn(clustertest.Set("k", "two"), clustertest.Set("l", "two")))
	must.OK(t, s.Close())
	return dir, before, readLog(t, dir)
}

func readLog(t testing.TB, dir string) []byte {
	t.Helper()
	data := must.Read(t, filepath.Join(dir, "log"))
	return data
}

func writeLog(t testing.TB, dir string, data []byte) {
	t.Helper()
	must.OK(t, os.WriteFile(filepath.Join(dir, "log"), data, 0o600))
}

// seal makes a header valid after a change.
func seal(header []byte) {
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.BigEndian.PutUint32(header[12:], crc32.Update(crc32.Checksum(header[:12], table), table,
		header[16:headerSize]))
}

// fromEarlierStart returns a log as an earlier start of the machine left it. Its header may be older than its batches.
func fromEarlierStart(log []byte) []byte {
	log = bytes.Clone(log)
	log[40] ^= 1
	seal(log)
	return log
}

// TestPowerCut: the machine fails in the middle of a commit, and the disk may have anything behind it. Earlier commits
// are kept, the last one is there as a whole or not at all, and the store goes on. The tests of package logfile cut at
// each byte.
func TestPowerCut(t *testing.T) {
	dir, before, after := filled(t)
	header := fromEarlierStart(before)[:headerSize]
	behind := [][]byte{nil, make([]byte, 100), bytes.Repeat([]byte("\xf5TAS"), 25), before[headerSize:]}
	for cut := len(before); cut <= len(after); cut += max(1, min(7, len(after)-1-cut)) {
		tails := behind
		if cut < len(after) {
			tails = behind[cut%len(behind):][:1]
		}
		for n, tail := range tails {
			writeLog(t, dir, slices.Concat(header, after[headerSize:cut], tail))
			s := disk.New(dir)
			want := "one"
			if cut == len(after) {
				want = "two"
			}
			k, l := clustertest.Get(t, s, "k"), clustertest.Get(t, s, "l")
			if string(k.Value) != want || (l.ModifyIndex != 0) != (want == "two") {
				t.Fatalf("cut at %d of %d, tail %d: k is %q, l %q", cut, len(after), n, k.Value, l.Value)
			}
			index := clustertest.Put(t, s, "k", "three", cluster.Condition{Key: "k", ModifyIndex: k.ModifyIndex})
			s.Close()
			if e := clustertest.Get(t, open(t, dir), "k"); string(e.Value) != "three" || index != k.ModifyIndex+1 {
				t.Fatalf("cut at %d, tail %d, then a commit: %q at %d", cut, n, e.Value, index)
			}
		}
	}
}

// TestEachByteOfTheHeaderCounts: the store refuses a header in which a bit of any byte has flipped. The tests of
// package logfile do the same with the records after the header.
func TestEachByteOfTheHeaderCounts(t *testing.T) {
	dir, _, after := filled(t)
	for i := range headerSize {
		data := bytes.Clone(after)
		data[i] ^= 1 << (i % 8)
		writeLog(t, dir, data)
		s := disk.New(dir)
		_, _, err := s.Get(t.Context(), "k")
		s.Close()
		wantDamaged(t, dir, fmt.Sprintf("byte %d", i), err)
	}
}

// wantDamaged requires an error that names the file and says what to do.
func wantDamaged(t testing.TB, dir, what string, err error) {
	t.Helper()
	if !errors.Is(err, disk.ErrDamaged) || !errors.Is(err, cluster.ErrUnavailable) ||
		!strings.Contains(err.Error(), filepath.Join(dir, "log")) ||
		!strings.Contains(err.Error(), "put a backup") {
		t.Errorf("%s: %v", what, err)
	}
}

// TestDamage: a log that another program has changed is an error, whether the store was open or closed meanwhile.
func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string, before, after []byte){
		"cut short": func(t *testing.T, dir string, _, after []byte) {
			writeLog(t, dir, after[:len(after)-1])
		},
		"emptied": func(t *testing.T, dir string, _, _ []byte) { writeLog(t, dir, nil) },
		"another format": func(t *testing.T, dir string, _, after []byte) {
			after[11]++
			seal(after)
			writeLog(t, dir, after)
		},
		"not a log": func(t *testing.T, dir string, _, _ []byte) {
			writeLog(t, dir, bytes.Repeat([]byte("text "), 100))
		},
		"a header that lies": func(t *testing.T, dir string, _, after []byte) {
			after[23]++
			seal(after)
			writeLog(t, dir, after)
		},
		"gone": func(t *testing.T, dir string, _, _ []byte) {
			must.OK(t, os.Remove(filepath.Join(dir, "log")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, before, after := filled(t)
			opened := open(t, dir)
			clustertest.Get(t, opened, "k")
			ended := make(chan error)
			go func() { _, err := opened.Watch(t.Context(), "none", 1<<40); ended <- err }()
			damage(t, dir, before, after)
			wantDamaged(t, dir, "a watch that waits", <-ended)
			for which, s := range map[string]*disk.Store{"opened before": opened, "opened after": open(t, dir)} {
				_, _, err := s.Get(t.Context(), "k")
				wantDamaged(t, dir, which+": get", err)
				_, err = s.Commit(t.Context(), clustertest.Txn(clustertest.Set("k", "three")))
				wantDamaged(t, dir, which+": commit", err)
			}
		})
	}
}

// TestOlderLogIsNotBelieved: an older log in the place of the log is an error of a store that is open, and a backup for
// a store that is opened later.
func TestOlderLogIsNotBelieved(t *testing.T) {
	dir, before, _ := filled(t)
	opened := open(t, dir)
	clustertest.Get(t, opened, "k")
	backup := filepath.Join(dir, "backup")
	must.OK(t, os.WriteFile(backup, before, 0o600))
	must.OK(t, os.Rename(backup, filepath.Join(dir, "log")))
	_, _, err := opened.Get(t.Context(), "k")
	wantDamaged(t, dir, "under an open store", err)
	restored := open(t, dir)
	if e := clustertest.Get(t, restored, "k"); string(e.Value) != "one" {
		t.Errorf("got %q", e.Value)
	}
	clustertest.Put(t, restored, "k", "three")
}

// TestBackup: a copy of the log that is made while others write is the store of one moment.
func TestBackup(t *testing.T) {
	dir := scratch(t)
	s := open(t, dir)
	clustertest.Put(t, s, "k", "v")
	p := start(t, "take", dir, "1000000", "1")
	defer p.Kill()
	p.line(t) // it writes
	for range 20 {
		index := clustertest.Put(t, s, "mine", "v")
		for n := range 5 {
			clustertest.Put(t, s, "mine", fmt.Sprint(n))
		}
		copied := scratch(t)
		must.OK(t, os.MkdirAll(copied, 0o700))
		writeLog(t, copied, readLog(t, dir))
		if e := clustertest.Get(t, open(t, copied), "mine"); string(e.Value) != "4" || e.ModifyIndex < index+5 {
			t.Fatalf("%q at %d, after %d", e.Value, e.ModifyIndex, index)
		}
	}
}

// TestUnsafePlaces: files and directories that other users can have made, or can change, are refused and not touched.
// The error says what to do.
func TestUnsafePlaces(t *testing.T) {
	target := filepath.Join(t.TempDir(), "target")
	must.OK(t, os.WriteFile(target, []byte("precious"), 0o600))
	link := func(name string) func(dir string) error {
		return func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Symlink(target, filepath.Join(dir, name)))
		}
	}
	fifo := func(name string) func(dir string) error {
		return func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), unix.Mkfifo(filepath.Join(dir, name), 0o600))
		}
	}
	for name, tc := range map[string]struct {
		plant func(dir string) error
		want  error
		root  bool
	}{
		"a directory that others may read": {plant: func(dir string) error { return os.Mkdir(dir, 0o755) },
			want: privatefile.ErrExposed},
		"a parent that others may write to": {plant: func(dir string) error {
			return os.Chmod(filepath.Dir(dir), 0o777)
		}, want: safedir.ErrUnsafe},
		"a link in its place": {plant: func(dir string) error { return os.Symlink(t.TempDir(), dir) },
			want: unix.ENOTDIR},
		"a file in its place": {plant: func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
			want: unix.ENOTDIR},
		"a log that is a link":   {plant: link("log"), want: privatefile.ErrNotRegular},
		"a lock that is a link":  {plant: link("lock"), want: privatefile.ErrNotRegular},
		"leases that are a link": {plant: link("leases"), want: privatefile.ErrNotRegular},
		"a queue that is a link": {plant: link("queue"), want: privatefile.ErrNotRegular},
		"a log that is a FIFO":   {plant: fifo("log"), want: privatefile.ErrNotRegular},
		"a lock that is a FIFO":  {plant: fifo("lock"), want: privatefile.ErrNotRegular},
		"a log that others may write to": {plant: func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/log", nil, 0o600), os.Chmod(dir+"/log", 0o666))
		}, want: privatefile.ErrExposed},
		"a directory of another user": {plant: func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1234, 1234))
		}, want: privatefile.ErrExposed, root: true},
		"a log of another user": {plant: func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/log", nil, 0o600),
				os.Chown(dir+"/log", 1234, 1234))
		}, want: privatefile.ErrExposed, root: true},
		"a directory of which there is no parent": {plant: func(dir string) error {
			return os.Remove(filepath.Dir(dir))
		}, want: os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.root && os.Geteuid() != 0 {
				t.Skip("needs another user, and so root")
			}
			dir := filepath.Join(t.TempDir(), "data", "cluster")
			must.OK(t, os.Mkdir(filepath.Dir(dir), 0o755))
			must.OK(t, tc.plant(dir))
			_, err := open(t, dir).Commit(t.Context(), clustertest.Txn(clustertest.Set("k", "v")))
			if !errors.Is(err, tc.want) || !errors.Is(err, cluster.ErrUnavailable) ||
				!strings.Contains(err.Error(), filepath.Dir(dir)) ||
				strings.Contains(err.Error(), dir+": "+dir) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	same.As(t, "precious", string(must.Get(os.ReadFile(target))(t)), "the target of the links has")
}

// TestUnfinishedRewriting: a crash while the log is rewritten, before or after the new log gets its name, does no harm.
// What it leaves is removed.
func TestUnfinishedRewriting(t *testing.T) {
	dir, _, after := filled(t)
	after[56] = 0 // its name may not be on the disk
	seal(after)
	writeLog(t, dir, after)
	draft := filepath.Join(dir, "log.new")
	must.OK(t, os.WriteFile(draft, []byte("half a log"), 0o600))
	s := open(t, dir)
	for _, when := range []string{"opening", "a commit"} {
		clustertest.Put(t, s, "k", "three")
		log := readLog(t, dir)
		if log[56] != 1 {
			t.Errorf("%s has not seen to the log's name", when)
		}
		log[56] = 0 // now under an open store: another process has rewritten it
		seal(log)
		writeLog(t, dir, log)
	}
	for range 30 {
		clustertest.Put(t, s, "other", strings.Repeat("v", 20<<10))
	}
	if _, err := os.Stat(draft); !errors.Is(err, os.ErrNotExist) || size(t, dir) > 300<<10 {
		t.Errorf("the draft: %v; the log has %d bytes", err, size(t, dir))
	}
	if e := clustertest.Get(t, open(t, dir), "k"); string(e.Value) != "three" {
		t.Errorf("got %q", e.Value)
	}
}

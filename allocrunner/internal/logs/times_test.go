package logs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/logs"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func timesPath(dir, file string) string { return filepath.Join(dir, logs.TimesName(file)) }

// wantTimes checks the times of a log file, at rising offsets.
func wantTimes(t *testing.T, dir, file string, want map[int64]time.Time) {
	t.Helper()
	f := must.Get(os.Open(timesPath(dir, file)))(t)
	defer f.Close()
	times := logs.NewTimes(f)
	for offset := range int64(1 << 10) {
		when, there := want[offset]
		if got, known := times.At(offset); there && (!known || !got.Equal(when)) {
			t.Errorf("%s: at %d: %v, %v, want %v", file, offset, got, known, when)
		}
	}
}

// TestTimes: the times of output survive a new writer, half a record, a clock that goes back, and rotation, and go with
// their file.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := open(t, config(dir, 2, 40<<10))
		begin := time.Now().Truncate(time.Millisecond)
		r.Write([]byte("0123456789"))
		time.Sleep(300 * time.Microsecond) // the same millisecond
		r.Write([]byte("0123456789"))
		time.Sleep(time.Hour)
		later := time.Now().Truncate(time.Millisecond)
		r.Write([]byte("0123456789"))
		want := map[int64]time.Time{0: begin, 9: begin, 19: begin, 20: later, 29: later}
		wantTimes(t, dir, "web.stdout.0", want)
		r.Close()

		f := must.Get(os.OpenFile(timesPath(dir, "web.stdout.0"), os.O_APPEND|os.O_WRONLY, 0))(t)
		if _, err := f.Write([]byte{0x80}); err != nil { // a varint goes on
			t.Fatal(err)
		}
		f.Close()
		r = open(t, config(dir, 2, 40<<10))
		time.Sleep(time.Minute)
		r.Write([]byte("again"))
		want[30] = time.Now().Truncate(time.Millisecond)
		wantTimes(t, dir, "web.stdout.0", want)

		for range 3 { // files
			r.Write(make([]byte, 40<<10))
			time.Sleep(time.Minute)
		}
		for file, there := range map[string]bool{"web.stdout.0": false, "web.stdout.1": false, "web.stdout.3": true} {
			if _, err := os.Stat(timesPath(dir, file)); (err == nil) != there {
				t.Errorf("%s: %v", file, err)
			}
		}
	})
}

// TestForgedTimes: times that a task has written are read in a short time, and those that follow are right.
func TestForgedTimes(t *testing.T) {
	for name, forge := range map[string]func(f *os.File) error{
		"a long hole": func(f *os.File) error { return f.Truncate(1 << 40) },
		"beyond the log": func(f *os.File) error {
			_, err := f.Write(binary.AppendVarint(binary.AppendVarint(nil, 1<<40), 1))
			return err
		},
		"after the year 9999": func(f *os.File) error {
			_, err := f.Write(binary.AppendVarint(binary.AppendVarint(nil, 0), 1<<62))
			return err
		},
		"backwards": func(f *os.File) error {
			_, err := f.Write(bytes.Repeat([]byte{3, 4, 3, 4}, 1<<20)) // offsets two less, then the same
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				r := open(t, config(dir, 2, 1<<20))
				r.Write([]byte("0123456789"))
				r.Close()
				f, err := os.Create(timesPath(dir, "web.stdout.0"))
				must.OK(t, err)
				must.OK(t, errors.Join(forge(f), f.Close()))
				if f, err = os.Open(f.Name()); err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if forged, known := logs.NewTimes(f).At(9); known && forged.Year() > 9999 {
					t.Errorf("a time that JSON does not have: %v", forged)
				}
				r = open(t, config(dir, 2, 1<<20))
				time.Sleep(time.Hour)
				r.Write([]byte("0123456789"))
				wantTimes(t, dir, "web.stdout.0", map[int64]time.Time{19: time.Now().Truncate(time.Millisecond)})
				if info, err := os.Stat(timesPath(dir, "web.stdout.0")); err != nil || info.Size() > 100 {
					t.Errorf("%v, %v", info, err)
				}
			})
		})
	}
}

// TestTimesInTheWay: what a task puts in the place of the times is not written, and costs no output.
func TestTimesInTheWay(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"link":      func(path string) error { return os.Symlink(filepath.Join(filepath.Dir(path), "target"), path) },
		"pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		dir := t.TempDir()
		must.OK(t, make(timesPath(dir, "web.stdout.0")))
		r := open(t, config(dir, 2, 1<<20))
		r.Write([]byte("text\n"))
		r.Close()
		same.As(t, "text\n", contents(t, dir)[0], name)
		same.Fails(t, same.Err(os.Stat(filepath.Join(dir, "target"))), name, ": it was followed")
	}
}

package logfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/internal/disktest"
	"taskapi/internal/logfile"
	"taskapi/internal/must"
)

var format = logfile.Format{Magic: "testing\x01", Number: 7}

// header returns a header that notes an end.
func header(end int) []byte { return format.Header(fmt.Appendf(nil, "%08d", end)) }

// batch returns a batch with two values.
func batch(txid uint64, text string) []byte {
	b := logfile.Record{Key: "a", TxID: txid, Body: []byte(text)}.Append(nil)
	b = logfile.Record{Key: "b", TxID: txid, Body: []byte(strings.Repeat(text, 3))}.Append(b)
	return logfile.Record{TxID: txid}.Append(b)
}

// create makes a file with some batches.
func create(t testing.TB, batches ...[]byte) *os.File {
	t.Helper()
	f := must.Get(logfile.Replace(filepath.Join(t.TempDir(), "log"), func(f *os.File) error {
		body := bytes.Join(batches, nil)
		_, err := f.Write(append(header(logfile.HeaderSize+len(body)), body...))
		return err
	}))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

func content(t testing.TB, f *os.File) []byte {
	t.Helper()
	data := must.Get(io.ReadAll(io.NewSectionReader(f, 0, 1<<40)))(t)
	return data
}

// values returns the values of all whole batches, where the last of these ends, and the error of the batch after it.
func values(data []byte) (values []string, end int64, err error) {
	scan := logfile.Scan(bytes.NewReader(data), logfile.HeaderSize, int64(len(data)))
	for {
		end = scan.At
		var found []string
		if _, err = scan.Batch(func(r logfile.Record, span logfile.Span) error {
			again, err := span.Read(bytes.NewReader(data), new([]byte))
			if err == nil && (again.Key != r.Key || !bytes.Equal(again.Body, r.Body)) {
				err = errors.New("a span has another record")
			}
			found = append(found, fmt.Sprintf("%s%d=%s", r.Key, r.TxID, r.Body))
			return err
		}); err != nil {
			return values, end, err
		}
		values = append(values, found...)
	}
}

// TestAppend appends batches to a file that has one, and reads all of them.
func TestAppend(t *testing.T) {
	f := create(t, batch(1, "x"))
	end := len(content(t, f))
	for txid := uint64(2); txid < 5; txid++ {
		b := batch(txid, strings.Repeat("y", 20_000)) // more than is read ahead
		must.OK(t, logfile.Append(f, int64(end), b, header(end+len(b)), header(end)))
		end += len(b)
	}
	data := content(t, f)
	found, last, err := values(data)
	if len(found) != 8 || !errors.Is(err, io.EOF) || last != int64(end) || found[0] != "a1=x" ||
		len(found[7]) != len("b4=")+60_000 {
		t.Errorf("%d values up to byte %d of %d: %v", len(found), last, end, err)
	}
	fields, number, err := format.Parse(data)
	if want := fmt.Sprintf("%08d", end); err != nil || number != 7 || string(fields[:8]) != want ||
		len(bytes.Trim(fields[8:], "\x00")) > 0 {
		t.Errorf("the header has %q, %d, %v; want %s", fields, number, err, want)
	}
}

// TestCrashOfTheMachine cuts an append off at each byte, with anything behind it. Earlier batches are read, and the cut
// one as a whole or not at all. After Settle the file can be appended to.
func TestCrashOfTheMachine(t *testing.T) {
	f := create(t, batch(1, "x"))
	before := content(t, f)
	after := append(slices.Clone(before), batch(2, "y")...)
	tails := [][]byte{nil, make([]byte, 100), bytes.Repeat([]byte(logfile.Magic), 25), before[logfile.HeaderSize:],
		batch(3, "z")[:60]}
	for cut := len(before); cut <= len(after); cut++ {
		for n, tail := range tails {
			data := slices.Concat(after[:cut], tail)
			want := 2
			if cut == len(after) {
				want = 4
			}
			found, end, _ := values(data)
			if n != 3 && len(found) != want || len(found) < want {
				t.Fatalf("cut at byte %d, tail %d: %q", cut, n, found)
			}
			if cut%7 > 0 && cut < len(after) {
				continue
			}
			must.OK(t, errors.Join(f.Truncate(0), write(f, data), logfile.Settle(f, end, header(int(end)))))
			b := batch(9, "next")
			must.OK(t, logfile.Append(f, end, b, header(int(end)+len(b)), header(int(end))))
			again, _, err := values(content(t, f))
			if !slices.Equal(again, append(found, "a9=next", "b9=nextnextnext")) || !errors.Is(err, io.EOF) {
				t.Fatalf("cut at byte %d, tail %d, then an append: %q, %v", cut, n, again, err)
			}
		}
	}
}

func write(f *os.File, data []byte) error {
	_, err := f.WriteAt(data, 0)
	return err
}

// TestEachBitCounts: every bit that flips is an error.
func TestEachBitCounts(t *testing.T) {
	whole := content(t, create(t, batch(1, "x"), batch(2, "y")))
	for bit := range 8 * len(whole) {
		data := slices.Clone(whole)
		data[bit/8] ^= 1 << (bit % 8)
		_, _, headerErr := format.Parse(data)
		_, _, err := values(data)
		if bit < 8*logfile.HeaderSize && !errors.Is(headerErr, logfile.ErrHeader) || bit >= 8*logfile.HeaderSize &&
			errors.Is(err, io.EOF) {
			t.Errorf("bit %d of byte %d: %v, %v", bit%8, bit/8, headerErr, err)
		}
	}
}

// TestBatchesThatAreNone: whole records that make no batch are an error.
func TestBatchesThatAreNone(t *testing.T) {
	for name, data := range map[string][]byte{
		"two changes in one": append(logfile.Record{Key: "a", TxID: 1}.Append(nil), batch(2, "x")...),
		"change 0":           batch(0, "x"),
		"no end":             logfile.Record{Key: "a", TxID: 1}.Append(nil),
	} {
		if found, _, err := values(append(header(0), data...)); len(found) > 0 || err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %q, %v", name, found, err)
		}
	}
}

// TestSkip: records are found behind damage of any length, also when a record's magic lies across the end of the
// buffer.
func TestSkip(t *testing.T) {
	record := logfile.Record{Key: "k", TxID: 3, Body: []byte("body")}.Append(nil)
	for _, size := range []int{1, 3, 4, 100, 32<<10 - 5, 32<<10 - 3, 32<<10 - 1, 32 << 10, 32<<10 + 1, 40_000} {
		for name, noise := range map[string][]byte{
			"zeros":  make([]byte, size),
			"magics": bytes.Repeat([]byte(logfile.Magic), size)[:size],
		} {
			data := slices.Concat(noise, record, noise)
			scan := logfile.Scan(bytes.NewReader(data), 0, int64(len(data)))
			found := 0
			for {
				r, span, err := scan.Record()
				if errors.Is(err, io.EOF) {
					break
				}
				if errors.Is(err, logfile.ErrNoRecord) {
					scan.Skip()
					continue
				}
				if found++; err != nil || r.Key != "k" || span != (logfile.Span{At: int64(size),
					Size: uint32(len(record))}) {
					t.Errorf("%s, %d: %+v at %+v, %v", name, size, r, span, err)
				}
			}
			if found != 1 || scan.At != int64(len(data)) {
				t.Errorf("%s, %d: %d records up to byte %d of %d", name, size, found, scan.At, len(data))
			}
		}
	}
}

// TestCutOffBody: a record whose body is cut short keeps its key and its TxID.
func TestCutOffBody(t *testing.T) {
	record := logfile.Record{Key: "k", TxID: 3, Body: make([]byte, 50_000)}.Append(nil)
	for _, size := range []int{logfile.RecordSize + 1, 40_000, len(record) - 1} {
		scan := logfile.Scan(bytes.NewReader(record[:size]), 0, int64(size))
		if r, span, err := scan.Record(); !errors.Is(err, logfile.ErrBody) || r.Key != "k" || r.TxID != 3 ||
			int(span.Size) != size {
			t.Errorf("%d bytes: %q of %d at %+v, %v", size, r.Key, r.TxID, span, err)
		}
	}
}

// TestPlacesThatLie: a header may name an end that the file does not have. The scanner ends with the file.
func TestPlacesThatLie(t *testing.T) {
	record := logfile.Record{Key: "k", TxID: 3, Body: make([]byte, 50_000)}.Append(nil)
	for _, tc := range []struct {
		size     int
		from, to int64
		want     error
	}{
		{len(record), 0, 1 << 40, nil},
		{40_000, 0, 1 << 40, io.ErrUnexpectedEOF},
		{len(record), 10, 5, io.EOF},
		{len(record), 1 << 40, 5, io.EOF},
		{len(record), 0, -1 << 62, io.EOF},
	} {
		scan := logfile.Scan(bytes.NewReader(record[:tc.size]), tc.from, tc.to)
		if _, _, err := scan.Record(); !errors.Is(err, tc.want) {
			t.Errorf("%d bytes, from %d to %d: %v, want %v", tc.size, tc.from, tc.to, err, tc.want)
		}
	}
}

// TestRefusedAppend: a batch that the file system refuses, at its beginning, in its middle, or at the header, leaves
// the file as it was.
func TestRefusedAppend(t *testing.T) {
	if !disktest.Limited(t) {
		return
	}
	f := create(t, batch(1, "x"))
	before := content(t, f)
	b := batch(2, "y")
	for _, room := range []int{0, 10, len(before), len(before) + 1, len(before) + len(b) - 1} {
		disktest.LimitSize(t, uint64(room))
		err := logfile.Append(f, int64(len(before)), b, header(1), header(len(before)))
		disktest.LimitSize(t, unix.RLIM_INFINITY)
		if !errors.Is(err, syscall.EFBIG) || errors.Is(err, logfile.ErrUncertain) ||
			!bytes.Equal(content(t, f), before) {
			t.Errorf("with room for %d bytes: %v", room, err)
		}
	}
}

// TestHeaderNotesNoMoreThanThereIs: a batch was written, and its undoing failed, so the header notes it although the
// caller goes on without it. The file is whole after each further failure.
func TestHeaderNotesNoMoreThanThereIs(t *testing.T) {
	if !disktest.Limited(t) {
		return
	}
	first, second := batch(1, "x"), batch(2, "y")
	f := create(t, first)
	before := content(t, f)
	end := len(before)
	must.OK(t, logfile.Append(f, int64(end), second, header(end+len(second)), header(end)))
	after := content(t, f)
	disktest.LimitSize(t, 0)
	err := logfile.Settle(f, int64(end), header(end))
	disktest.LimitSize(t, unix.RLIM_INFINITY)
	if got := content(t, f); !errors.Is(err, syscall.EFBIG) || !bytes.Equal(got, after) {
		t.Errorf("no header can be written: %v; the file has %d bytes of %d", err, len(got), len(after))
	}
	disktest.LimitSize(t, uint64(end))
	err = logfile.Append(f, int64(end), batch(3, "z"), header(end+len(second)), header(end))
	disktest.LimitSize(t, unix.RLIM_INFINITY)
	want := append(header(end), before[logfile.HeaderSize:]...)
	if got := content(t, f); !errors.Is(err, syscall.EFBIG) || errors.Is(err, logfile.ErrUncertain) ||
		!bytes.Equal(got, want) {
		t.Errorf("no batch can be written: %v; the file has %d bytes, want %d", err, len(got), len(want))
	}
}

// TestAppendToAnotherFile: a file that is shorter than it was is not changed. When what was written can't be removed,
// the error says that the result is uncertain.
func TestAppendToAnotherFile(t *testing.T) {
	f := create(t, batch(1, "x"))
	before := content(t, f)
	if err := logfile.Append(f, int64(len(before))+1, batch(2, "y"), header(1), header(1)); !errors.Is(err,
		logfile.ErrShort) || !bytes.Equal(content(t, f), before) {
		t.Errorf("a short file: %v", err)
	}
	if err := logfile.Settle(f, int64(len(before))+1, header(1)); !errors.Is(err, logfile.ErrShort) ||
		!bytes.Equal(content(t, f), before) {
		t.Errorf("a short file: %v", err)
	}
	reader := must.Get(os.Open(filepath.Join(filepath.Dir(f.Name()), "log")))(t)
	defer reader.Close()
	if err := logfile.Append(reader, int64(len(before)), batch(2, "y"), header(1), header(1)); !errors.Is(err,
		logfile.ErrUncertain) || !errors.Is(err, syscall.EBADF) {
		t.Errorf("a file that can't be written: %v", err)
	}
}

// TestReplace: at whatever step a replacement ends, by a crash or an error, the old file is there, or the new one, and
// the next replacement works.
func TestReplace(t *testing.T) {
	precious := filepath.Join(t.TempDir(), "precious")
	must.OK(t, os.WriteFile(precious, []byte("precious"), 0o600))
	fails := errors.New("fails")
	fill := func(f *os.File) error { _, err := f.WriteString("new"); return err }
	for name, tc := range map[string]struct {
		plant func(path string) error // what a crash has left, or what is in the way
		write func(*os.File) error
		want  error
	}{
		"nothing in the way": {func(string) error { return nil }, fill, nil},
		"half a draft": {func(path string) error {
			return os.WriteFile(path+".new", []byte("half a file"), 0o400)
		}, fill, nil},
		"a link in its place": {func(path string) error { return os.Symlink(precious, path+".new") }, fill,
			nil},
		"a folder in its place": {func(path string) error { return os.MkdirAll(path+".new/x", 0o700) }, fill,
			syscall.ENOTEMPTY},
		"a write that fails": {func(string) error { return nil },
			func(f *os.File) error { return errors.Join(fill(f), fails) }, fails},
		"a rename that fails": {func(path string) error {
			return errors.Join(os.Remove(path), os.MkdirAll(path+"/x", 0o700))
		}, fill, syscall.EEXIST},
		"no directory for it": {func(path string) error { return os.RemoveAll(filepath.Dir(path)) }, fill,
			os.ErrNotExist},
		"a file that nobody may replace": {func(path string) error { return os.Chmod(path, 0) }, fill, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dir", "log")
			must.OK(t, errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("old"), 0o600),
				tc.plant(path)))
			f, err := logfile.Replace(path, tc.write)
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			want := "old"
			if err == nil {
				want = "new"
				if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%v, %v, want mode 0600", info, err)
				}
				if err := errors.Join(logfile.SyncName(path), f.Close()); err != nil {
					t.Error(err)
				}
			}
			if data, err := os.ReadFile(path); err == nil && string(data) != want {
				t.Errorf("the file has %q, want %q", data, want)
			}
			if info, err := os.Lstat(path + ".new"); err == nil && !info.IsDir() {
				t.Error("a draft is left")
			}
		})
	}
	if data, err := os.ReadFile(precious); err != nil || string(data) != "precious" {
		t.Errorf("the target of the link has %q, %v", data, err)
	}
}

// TestRewriting: a file is rewritten when it is twice as long as what is valid, and after a failure when it has grown
// by the floor.
func TestRewriting(t *testing.T) {
	var r logfile.Rewriting
	var at []int64
	result := errors.New("fails")
	for size := range int64(102) {
		r.If(size, 20, 30, func() error { at = append(at, size); return result })
		if size == 75 {
			result = nil
		}
	}
	if want := []int64{40, 70, 100, 101}; !slices.Equal(at, want) { // one that succeeds ends the pause
		t.Errorf("rewritten at %v, want %v", at, want)
	}
}

// FuzzScan: whatever bytes a file has, the scanner gets to its end, and each record that it returns lies in the file.
func FuzzScan(f *testing.F) {
	whole := append(batch(1, "x"), batch(2, "y")...)
	f.Add(whole)
	f.Add(whole[3:])
	f.Add(slices.Concat(whole[:40], whole))
	f.Fuzz(func(t *testing.T, data []byte) {
		scan := logfile.Scan(bytes.NewReader(data), 0, int64(len(data)))
		for {
			at := scan.At
			r, span, err := scan.Record()
			if errors.Is(err, io.EOF) {
				break
			}
			if errors.Is(err, logfile.ErrNoRecord) {
				scan.Skip()
			} else if span.At != at || span.At+int64(span.Size) != scan.At ||
				len(r.Key)+len(r.Body)+logfile.RecordSize > int(span.Size) {
				t.Fatalf("%+v at %+v, from %d to %d", r, span, at, scan.At)
			}
			if scan.At <= at || scan.At > int64(len(data)) {
				t.Fatalf("from %d to %d of %d", at, scan.At, len(data))
			}
		}
	})
}

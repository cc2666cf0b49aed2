package logs_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"taskapi/allocrunner/internal/logs"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(dir string, files int, bytes int64) logs.Config {
	return logs.Config{Dir: dir, Name: "web.stdout", MaxFiles: files, MaxBytes: bytes,
		Logger: slog.New(slog.DiscardHandler)}
}

func open(t testing.TB, cfg logs.Config) *logs.Rotator {
	t.Helper()
	r := must.Get(logs.Open(cfg))(t)
	t.Cleanup(func() { r.Close() })
	return r
}

// contents reads the stream's files by number.
func contents(t testing.TB, dir string) map[int]string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	files := map[int]string{}
	for _, e := range entries {
		n, err := strconv.Atoi(strings.TrimPrefix(e.Name(), "web.stdout."))
		if err != nil || !e.Type().IsRegular() {
			continue
		}
		text := must.Read(t, filepath.Join(dir, e.Name()))
		files[n] = string(text)
	}
	return files
}

func joined(files map[int]string) string {
	var b strings.Builder
	for _, n := range numbers(files) {
		b.WriteString(files[n])
	}
	return b.String()
}

func numbers(files map[int]string) []int {
	var ns []int
	for n := range files {
		ns = append(ns, n)
	}
	slices.Sort(ns)
	return ns
}

func TestOpenMakesAnEmptyReadableFile(t *testing.T) {
	dir := t.TempDir()
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	open(t, config(dir, 2, 100))
	info, err := os.Stat(filepath.Join(dir, "web.stdout.0"))
	if err != nil || info.Size() != 0 || info.Mode() != 0o644 {
		t.Fatalf("got %v, %v; want an empty file of mode 0644", info, err)
	}
}

func TestNumbersRiseAndTheOldestGo(t *testing.T) {
	dir := t.TempDir()
	r := open(t, config(dir, 2, 1<<20))
	line := strings.Repeat("x", 99) + "\n"
	for range 3*(1<<20)/100 + 4000 { // 3.4 MiB
		r.Write([]byte(line))
	}
	files := contents(t, dir)
	if got := numbers(files); !slices.Equal(got, []int{2, 3}) {
		t.Fatalf("files %v, want 2 and 3", got)
	}
	if size := len(files[2]); size > 1<<20 || size < 1<<20-32<<10 {
		t.Errorf("a full file has %d bytes, want at most 32 KiB less than 1 MiB", size)
	}
}

func TestARestartAppendsToTheHighestNumber(t *testing.T) {
	dir := t.TempDir()
	for n, text := range map[int]string{3: "three\n", 10: "ten\n", 9: "nine\n"} {
		os.WriteFile(filepath.Join(dir, fmt.Sprintf("web.stdout.%d", n)), []byte(text), 0o644)
	}
	os.WriteFile(filepath.Join(dir, "web.stdout.007"), []byte("not ours"), 0o644)
	os.WriteFile(filepath.Join(dir, "web.stdout.99999999999999999999"), []byte("not ours"), 0o644)
	r := open(t, config(dir, 2, 100))
	r.Write([]byte("more\n"))
	files := contents(t, dir)
	if files[10] != "ten\nmore\n" || files[9] != "nine\n" {
		t.Errorf("got %v", files)
	}
	same.Fails(t, same.Err(os.Stat(filepath.Join(dir, "web.stdout.3"))), "number 3 is one too many and still there")
}

// TestNothingIsLostAndShortLinesAreWhole feeds random lines in random pieces.
func TestNothingIsLostAndShortLinesAreWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := must.Get(os.MkdirTemp(t.TempDir(), ""))(rt)
		defer os.RemoveAll(dir)
		const limit = 100 << 10
		r := must.Get(logs.Open(config(dir, 1000, limit)))(rt)
		defer r.Close()
		var text []byte
		lengths := rapid.SliceOfN(rapid.IntRange(0, 16<<10), 1, 60).Draw(rt, "lengths")
		for _, n := range lengths {
			text = append(append(text, bytes.Repeat([]byte{'a'}, n)...), '\n')
		}
		for rest := text; len(rest) > 0; {
			n := min(len(rest), rapid.IntRange(1, 64<<10).Draw(rt, "piece"))
			r.Write(rest[:n])
			rest = rest[n:]
		}
		files := contents(t, dir)
		if joined(files) != string(text) {
			rt.Fatalf("%d bytes in, %d out", len(text), len(joined(files)))
		}
		ns := numbers(files)
		for _, n := range ns[:len(ns)-1] {
			if len(files[n]) > limit || !strings.HasSuffix(files[n], "\n") {
				rt.Fatalf("file %d has %d bytes and ends %q", n, len(files[n]), files[n][len(files[n])-1:])
			}
		}
	})
}

// TestWhereAFileEnds near a limit of 100 KiB, so in the last 32 KiB.
func TestWhereAFileEnds(t *testing.T) {
	line := func(kib int) string { return strings.Repeat("x", kib<<10-1) + "\n" }
	part := func(kib int) string { return strings.Repeat("y", kib<<10) }
	for name, c := range map[string]struct {
		writes []string
		want   int // KiB in the first file
	}{
		"lines fill it exactly":                    {[]string{line(50), line(50), line(1)}, 100},
		"a whole line does not fit":                {[]string{line(90), line(20)}, 90},
		"the beginning of a line does not fit":     {[]string{line(90), part(20)}, 90},
		"a line that fits comes with one that not": {[]string{line(60), line(20) + line(30)}, 80},
		"a piece ends within a line, in the zone":  {[]string{line(70) + part(20), line(30)}, 70},
		"a piece ends within a line, at the limit": {[]string{line(80) + part(20), line(1)}, 80},
		"a line began before the zone, and fits":   {[]string{part(60), part(20), line(10), line(20)}, 90},
		"a line began before the zone, and not":    {[]string{line(10), part(60), part(50)}, 100},
		"a long line comes with a short one":       {[]string{line(50) + part(60)}, 100},
		"a line fits before the zone only":         {[]string{line(60), part(60)}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := open(t, config(dir, 10, 100<<10))
			for _, text := range c.writes {
				r.Write([]byte(text))
			}
			files := contents(t, dir)
			want := c.want << 10
			if len(files[0]) != want || joined(files) != strings.Join(c.writes, "") {
				t.Errorf("the first file has %d bytes, want %d; all have %d", len(files[0]), want, len(joined(files)))
			}
		})
	}
}

func TestAnEndlessLineIsSplitAtTheLimit(t *testing.T) {
	dir := t.TempDir()
	r := open(t, config(dir, 100, 64<<10))
	for range 10 {
		r.Write(bytes.Repeat([]byte("x"), 50<<10))
	}
	for n, text := range contents(t, dir) {
		if len(text) > 64<<10 {
			t.Errorf("file %d has %d bytes", n, len(text))
		}
	}
	same.As(t, 500<<10, len(joined(contents(t, dir))), "bytes")
}

func TestWhatATaskPutsIntoTheDirectoryIsNotFollowed(t *testing.T) {
	for name, plant := range map[string]func(path, victim string) error{
		"link":      func(path, victim string) error { return os.Symlink(victim, path) },
		"hard link": func(path, victim string) error { return os.Link(victim, path) },
		"pipe":      func(path, _ string) error { return unix.Mkfifo(path, 0o666) },
		"directory": func(path, _ string) error { return os.Mkdir(path, 0o777) },
	} {
		for _, number := range []int{0, 1} { // the one to open, and the next to rotate to
			t.Run(fmt.Sprint(name, number), func(t *testing.T) {
				dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
				os.WriteFile(victim, []byte("precious"), 0o644)
				must.OK(t, plant(filepath.Join(dir, fmt.Sprintf("web.stdout.%d", number)), victim))
				r := open(t, config(dir, 5, 10))
				r.Write([]byte("12345678\n"))
				r.Write([]byte("abcdefgh\n"))
				if text, _ := os.ReadFile(victim); string(text) != "precious" {
					t.Errorf("the victim now holds %q", text)
				}
				if got := joined(contents(t, dir)); !strings.HasSuffix(got, "12345678\nabcdefgh\n") {
					t.Errorf("got %q", got)
				}
			})
		}
	}
}

func TestOpenRefusesSenselessSettings(t *testing.T) {
	for _, cfg := range []logs.Config{config(t.TempDir(), 0, 1), config(t.TempDir(), 1, 0), config("/no/such", 1, 1),
		{Dir: t.TempDir(), Name: "a/b", MaxFiles: 1, MaxBytes: 1}} {
		if r, err := logs.Open(cfg); err == nil {
			r.Close()
			t.Errorf("%+v was taken", cfg)
		}
	}
}

var note = regexp.MustCompile(`\[taskapi: (\d+) bytes of output are lost here: no space left on device\]\n`)

// fullDisk returns a log directory on a disk of 256 KiB that ballast fills but for a little.
func fullDisk(t *testing.T) (dir, ballast string) {
	t.Helper()
	dir = disktest.Mount(t, "size=256k").Dir
	ballast = filepath.Join(dir, "ballast")
	must.OK(t, os.WriteFile(ballast, make([]byte, 200<<10), 0o600))
	return dir, ballast
}

func TestAFullDiskIsCountedAndNoted(t *testing.T) {
	dir, ballast := fullDisk(t)
	r := open(t, config(dir, 3, 1<<20))
	line := []byte(strings.Repeat("y", 999) + "\n")
	const lines = 500
	for range lines {
		r.Write(line)
	}
	must.OK(t, os.Remove(ballast))
	r.Write([]byte("again\n"))
	got := joined(contents(t, dir))
	notes := note.FindAllStringSubmatch(got, -1)
	if len(notes) != 1 || !strings.HasSuffix(got, notes[0][0]+"again\n") {
		t.Fatalf("notes %v, end %q", notes, got[max(0, len(got)-200):])
	}
	lost := must.Get(strconv.ParseInt(notes[0][1], 10, 64))(t)
	before, _, _ := strings.Cut(got, "[taskapi")
	kept := int64(len(before))
	if strings.HasSuffix(before, "y\n") && kept%1000 != 0 {
		kept-- // the note begins a new line
	}
	if kept+lost != lines*1000 {
		t.Errorf("%d kept + %d lost != %d", kept, lost, lines*1000)
	}
}

func TestRotationOnAFullDiskMakesItsOwnSpace(t *testing.T) {
	dir, _ := fullDisk(t)
	cfg := config(dir, 2, 16<<10)
	var said bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
	r := open(t, cfg)
	for range 100 {
		r.Write([]byte(strings.Repeat("z", 999) + "\n"))
	}
	if said.Len() != 0 {
		t.Errorf("though two files of 16 KiB fit, it says %s", &said)
	}
}

func BenchmarkWrite(b *testing.B) {
	r := open(b, config(b.TempDir(), 2, 10<<20))
	line := []byte(strings.Repeat("x", 99) + "\n")
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		r.Write(line)
	}
}

package follow

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

// chunk is output that was read from a task at a second of 1970; the second 0 is unknown.
type chunk struct {
	second int64
	text   string
}

// memoryLogs are the logs of tasks by TASK.KIND, each one file.
type memoryLogs struct {
	interfaces.Files
	of map[string][]chunk
}

func (m memoryLogs) Logs(task, kind string, span interfaces.Span) (interfaces.Frames, error) {
	chunks, there := m.of[task+"."+kind]
	if !there {
		return nil, interfaces.ErrNoLogs
	}
	f := &memoryFrames{file: task + "." + kind, follow: span.Follow}
	for _, c := range chunks {
		f.rest = append(f.rest, c.text)
	}
	if span.File != "" { // whole chunks
		f.at = span.Offset
		for skip := span.Offset; skip > 0; skip -= int64(len(f.rest[0])) {
			f.rest = f.rest[1:]
		}
	}
	return f, nil
}

type memoryFrames struct {
	file   string
	rest   []string
	at     int64
	follow bool
}

func (f *memoryFrames) Next(ctx context.Context) (*api.StreamFrame, error) {
	if len(f.rest) == 0 && f.follow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if len(f.rest) == 0 {
		return nil, io.EOF
	}
	text := f.rest[0]
	f.rest, f.at = f.rest[1:], f.at+int64(len(text))
	return &api.StreamFrame{File: f.file, Offset: f.at, Data: []byte(text)}, nil
}

func (*memoryFrames) Close() error { return nil }

func (m memoryLogs) LogTimes(file string) interfaces.LogTimes { return memoryTimes(m.of[file]) }

type memoryTimes []chunk

func (m memoryTimes) At(offset int64) (time.Time, bool) {
	for _, c := range m {
		if offset < int64(len(c.text)) {
			return time.Unix(c.second, 0), c.second != 0
		}
		offset -= int64(len(c.text))
	}
	return time.Time{}, false
}

func (memoryTimes) Close() error { return nil }

// read returns the lines of the streams, each as "TASK.KIND SECOND text".
func read(t *testing.T, files interfaces.Files, rest bool, names ...TaskStream) (lines []string, readers []*Lines) {
	t.Helper()
	for _, s := range names {
		readers = append(readers, NewLines(files, s, interfaces.Span{}))
	}
	err := Merge(t.Context(), readers, rest, func(l Line) error {
		lines = append(lines, written(l))
		return nil
	})
	must.OK(t, err)
	return lines, readers
}

func written(l Line) string {
	second := "?"
	if !l.Time.IsZero() {
		second = fmt.Sprint(l.Time.Unix())
	}
	return fmt.Sprintf("%s.%s %s %s", l.Task, l.Kind, second, l.Text)
}

func TestMerge(t *testing.T) {
	files := memoryLogs{of: map[string][]chunk{
		"a.stdout": {{0, "old\n"}, {1, "be"}, {3, "gun\nthree\n"}, {7, "unfinished"}},
		"a.stderr": {{2, "two\n"}, {3, "also three\n"}, {9, "nine\n"}},
	}}
	out, err := TaskStream{"a", "stdout"}, TaskStream{"a", "stderr"}
	want := []string{"a.stdout ? old\n", "a.stdout 1 begun\n", "a.stderr 2 two\n", "a.stdout 3 three\n",
		"a.stderr 3 also three\n", "a.stdout 7 unfinished", "a.stderr 9 nine\n"}
	if got, _ := read(t, files, true, out, err, TaskStream{"none", "stdout"}); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}

	got, readers := read(t, files, false, out, err)
	if want := slices.Delete(slices.Clone(want), 5, 6); !slices.Equal(got, want) {
		t.Errorf("without the rest: %q, want %q", got, want)
	}
	files.of["a.stdout"] = append(files.of["a.stdout"], chunk{10, " line\nnext"})
	following, end := context.WithCancel(t.Context())
	line, e := readers[0].Next(t.Context(), following, true)
	if got := written(line); e != nil || got != "a.stdout 7 unfinished line\n" {
		t.Errorf("%q, %v", got, e)
	}
	end()
	if _, e := readers[0].Next(t.Context(), following, true); e != io.EOF { //nolint:errorlint // as promised
		t.Errorf("%v", e)
	}
	if line, there := readers[0].Rest(); !there || string(line.Text) != "next" {
		t.Errorf("%q, %v", line.Text, there)
	}
}

// TestLongLines: a line that is too long comes in pieces, which are the same text.
func TestLongLines(t *testing.T) {
	long := strings.Repeat("x", 2*maxLine+5) + "\n"
	files := memoryLogs{of: map[string][]chunk{"a.stdout": {{1, long}, {2, "next\n"}}}}
	var text strings.Builder
	var rests []bool
	err := Merge(t.Context(), []*Lines{NewLines(files, TaskStream{"a", "stdout"}, interfaces.Span{})}, true,
		func(l Line) error {
			text.Write(l.Text)
			rests = append(rests, l.Rest)
			return nil
		})
	if err != nil || text.String() != long+"next\n" || !slices.Equal(rests, []bool{false, true, true, false}) {
		t.Errorf("%d bytes, %v, %v", text.Len(), rests, err)
	}
}

// TestPieces: with Pieces, an unfinished line is not waited for.
func TestPieces(t *testing.T) {
	files := memoryLogs{of: map[string][]chunk{"a.stdout": {{1, "50 %"}, {2, " done\n"}}}}
	l := NewLines(files, TaskStream{"a", "stdout"}, interfaces.Span{})
	l.Pieces = true
	for _, want := range []string{"50 %", " done\n"} {
		got, err := l.Next(t.Context(), t.Context(), true)
		if err != nil || string(got.Text) != want || got.Rest != (want != "50 %") {
			t.Errorf("%q, %v, %v, want %q", got.Text, got.Rest, err, want)
		}
	}
}

package allocfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/logs"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// ended is a context that has ended: what is there is read, and nothing is waited for.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// next returns the next frame as text.
func next(t *testing.T, ctx context.Context, frames interfaces.Frames) string {
	t.Helper()
	f, err := frames.Next(ctx)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %q %s %d", f.File, f.Data, f.FileEvent, f.Offset)
}

func add(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
	}
	must.OK(t, errors.Join(err, f.Close()))
}

func TestSpans(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/alloc/data/f", "0123456789")
	for span, want := range map[interfaces.Span]string{
		{}: "0123456789", {Offset: 3}: "3456789", {Offset: 3,
			Limit: 4}: "3456", {Offset: 10}: "", {Offset: 11}: "", {Limit: 100}: "0123456789",
		{Offset: 3, FromEnd: true}: "789", {Offset: 100, FromEnd: true}: "0123456789", {FromEnd: true}: "",
	} {
		frames := must.Get(of(dir, nil).Open("alloc/data/f", span))(t)
		if got, err := readAll(frames); got != want || err != nil {
			t.Errorf("%+v is %q, %v; want %q", span, got, err, want)
		}
		frames.Close()
	}
}

// TestFrameSizes: a client of Nomad gets frames of Nomad's size. Others may have large ones.
func TestFrameSizes(t *testing.T) {
	dir := newDir(t)
	text := strings.Repeat("0123456789abcde\n", 20<<10)
	write(t, dir+"/alloc/data/f", text)
	write(t, dir+"/alloc/logs/t.stdout.0", text)
	for span, want := range map[interfaces.Span]int{{}: 64 << 10, {Large: true}: 256 << 10} {
		file := must.Get(of(dir, nil).Open("alloc/data/f", span))(t)
		log := must.Get(of(dir, nil).Logs("t", "stdout", span))(t)
		for _, frames := range []interfaces.Frames{file, log} {
			if first, err := frames.Next(ended); err != nil || len(first.Data) != want {
				t.Errorf("%+v: the first frame is %v, %v; want %d bytes", span, first, err, want)
			}
			if rest, err := readAll(frames); rest != text[want:] || err != nil {
				t.Errorf("%+v: the rest has %d bytes, %v; want %d", span, len(rest), err, len(text)-want)
			}
			frames.Close()
		}
	}
}

// TestFollow: each change is seen when it happens, in Nomad's words.
func TestFollow(t *testing.T) {
	for name, last := range map[string]func(path string) error{
		"removed": os.Remove,
		"renamed": func(path string) error { return os.Rename(path, path+".old") },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", []byte("other"), 0o600), os.Rename(path+".new", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			path := dir + "/alloc/data/f"
			write(t, path, "one")
			frames := must.Get(of(dir, nil).Open("alloc/data/f", interfaces.Span{Follow: true}))(t)
			defer frames.Close()
			ctx := t.Context()
			same.As(t, `alloc/data/f "one"  3`, next(t, ctx, frames))
			same.As(t, context.Canceled.Error(), next(t, ended, frames), "at the end")
			steps := make(chan string)
			var reader sync.WaitGroup
			reader.Go(func() {
				for range 4 {
					steps <- next(t, ctx, frames)
				}
			})
			add(t, path, "two")
			same.As(t, `alloc/data/f "two"  6`, <-steps)
			must.OK(t, os.Truncate(path, 0))
			same.As(t, `alloc/data/f "" file truncated 0`, <-steps)
			add(t, path, "x")
			same.As(t, `alloc/data/f "x"  1`, <-steps)
			must.OK(t, last(path))
			same.As(t, `alloc/data/f "" file deleted 1`, <-steps)
			reader.Wait()
			same.Error(t, io.EOF, same.Err(frames.Next(ctx)), "after the end")
		})
	}
}

func newRotator(t *testing.T, dir string, files int, bytes int64) *logs.Rotator {
	t.Helper()
	r := must.Get(logs.Open(logs.Config{
		Dir: dir + "/alloc/logs", Name: "web.stdout", MaxFiles: files, MaxBytes: bytes, Logger: slog.New(slog.DiscardHandler),
	}))(t)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// TestLogSpans: an offset counts over all files, from either end. The end itself is the whole latest file, as in Nomad.
func TestLogSpans(t *testing.T) {
	dir := newDir(t)
	for i, text := range []string{"aaa\n", "bbbbb\n", "cc\n"} {
		write(t, fmt.Sprintf("%s/alloc/logs/web.stdout.%d", dir, i+9), text) // by number: 9, 10, 11
	}
	write(t, dir+"/alloc/logs/web.stdout.x", "no log")
	write(t, dir+"/alloc/logs/web.stdout.012", "no log")
	write(t, dir+"/alloc/logs/web.stderr.0", "other")
	must.OK(t, os.Mkdir(dir+"/alloc/logs/web.stdout.7", 0o700))
	const all = "aaa\nbbbbb\ncc\n"
	for offset := range int64(len(all) + 3) {
		at := min(int(offset), len(all))
		tail := all[len(all)-at:]
		if offset == 0 {
			tail = "cc\n"
		}
		for span, want := range map[interfaces.Span]string{{Offset: offset}: all[at:],
			{Offset: offset, FromEnd: true}: tail} {
			frames := must.Get(of(dir, nil).Logs("web", "stdout", span))(t)
			if got, err := readAll(frames); got != want || err != nil {
				t.Errorf("%+v is %q, %v; want %q", span, got, err, want)
			}
			frames.Close()
		}
	}
	for span, want := range map[interfaces.Span]string{
		{File: "alloc/logs/web.stdout.10", Offset: 2}: "bbb\ncc\n", {File: "alloc/logs/web.stdout.11", Offset: 3}: "",
		{File: "alloc/logs/web.stdout.3", Offset: 2}: all, {File: "alloc/logs/web.stdout.12", Offset: 1}: "", {File: "x",
			Offset: 1}: all[1:],
		{File: "alloc/logs/web.stdout.9", Offset: 100}: all[4:],
	} {
		frames := must.Get(of(dir, nil).Logs("web", "stdout", span))(t)
		if got, err := readAll(frames); got != want || err != nil {
			t.Errorf("%+v is %q, %v; want %q", span, got, err, want)
		}
		frames.Close()
	}
	if _, err := of(dir, nil).Logs("web", "nope", interfaces.Span{Follow: true}); !errors.Is(err, interfaces.ErrNoLogs) {
		t.Errorf("without files: %v", err)
	}
}

// TestLogsAcrossRotation: many readers get every byte once, in order, while the files rotate as fast as they can.
func TestLogsAcrossRotation(t *testing.T) {
	dir := newDir(t)
	tree := of(dir, nil)
	const lines, readers = 20_000, 4
	var want bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	writer := newRotator(t, dir, 1000, 8<<10)
	var all sync.WaitGroup
	for range readers {
		frames := must.Get(tree.Logs("web", "stdout", interfaces.Span{Follow: true, Await: true}))(t)
		all.Go(func() {
			defer frames.Close()
			var got bytes.Buffer
			positions := map[string]int64{}
			for got.Len() < want.Len() {
				f, err := frames.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if positions[f.File] += int64(len(f.Data)); positions[f.File] != f.Offset {
					t.Errorf("%s: offset %d after %d bytes", f.File, f.Offset, positions[f.File])
				}
				got.Write(f.Data)
			}
			if !bytes.Equal(got.Bytes(), want.Bytes()) {
				t.Errorf("read %d bytes that are not those written", got.Len())
			}
			if len(positions) < 10 {
				t.Errorf("read from %d files: nothing rotated", len(positions))
			}
		})
	}
	for line := range bytes.Lines(want.Bytes()) {
		writer.Write(line)
	}
	all.Wait()
}

// TestLogsThatAreGone: a reader who is too late keeps the file that it reads, and is told what it has missed.
func TestLogsThatAreGone(t *testing.T) {
	dir := newDir(t)
	writer := newRotator(t, dir, 2, 10)
	writer.Write([]byte("line 0\n"))
	frames := must.Get(of(dir, nil).Logs("web", "stdout", interfaces.Span{Follow: true}))(t)
	defer frames.Close()
	for i := 1; i < 8; i++ {
		writer.Write(fmt.Appendf(nil, "line %d\n", i))
	}
	var got []string
	for range 4 {
		got = append(got, next(t, ended, frames))
	}
	want := []string{
		`alloc/logs/web.stdout.0 "line 0\n"  7`,
		`alloc/logs/web.stdout.6 "[taskapi: output is missing here: web.stdout.1 to .5 were removed before they were ` +
			`read]\n" file deleted 0`,
		`alloc/logs/web.stdout.6 "line 6\n"  7`, `alloc/logs/web.stdout.7 "line 7\n"  7`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLogsAreHeld: a reader that sees files come in time has them, though they are removed before it comes to them.
func TestLogsAreHeld(t *testing.T) {
	dir := newDir(t)
	writer := newRotator(t, dir, 2, 10)
	writer.Write([]byte("line 0\n"))
	frames := must.Get(of(dir, nil).Logs("web", "stdout", interfaces.Span{Follow: true}))(t)
	defer frames.Close()
	var got, want strings.Builder
	for i := range 8 {
		if i > 0 {
			writer.Write(fmt.Appendf(nil, "line %d\n", i))
		}
		fmt.Fprintf(&want, "line %d\n", i)
		if i < 2 || i%2 == 0 { // it falls behind, by less than the writer keeps each time
			f := must.Get(frames.Next(t.Context()))(t)
			got.Write(f.Data)
		}
	}
	for got.Len() < want.Len() {
		f := must.Get(frames.Next(t.Context()))(t)
		got.Write(f.Data)
	}
	if got.String() != want.String() {
		t.Errorf("got %q, want %q", got.String(), want.String())
	}
}

// TestLogsBeforeTheTaskStarts: a reader that awaits it has it from the first byte.
func TestLogsBeforeTheTaskStarts(t *testing.T) {
	dir := newDir(t)
	frames := must.Get(of(dir, nil).Logs("web", "stdout", interfaces.Span{Follow: true, Await: true}))(t)
	defer frames.Close()
	same.As(t, context.Canceled.Error(), next(t, ended, frames), "before")
	first := make(chan string)
	go func() { first <- next(t, t.Context(), frames) }()
	newRotator(t, dir, 2, 100).Write([]byte("first\n"))
	same.As(t, `alloc/logs/web.stdout.0 "first\n"  6`, <-first)
}

// TestForeignLogFile: what stands in the place of a log file is neither read nor waited for without end.
func TestForeignLogFile(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/alloc/logs/web.stdout.0", "zero\n")
	must.OK(t, os.Symlink("../../web/secrets/nomad_token", dir+"/alloc/logs/web.stdout.1"))
	for _, follow := range []bool{false, true} {
		frames := must.Get(of(dir, nil).Logs("web", "stdout", interfaces.Span{Follow: follow}))(t)
		same.As(t, `alloc/logs/web.stdout.0 "zero\n"  5`, next(t, ended, frames))
		same.Fails(t, same.Err(frames.Next(ended)), "something was read behind the link")
		frames.Close()
	}
}

package linewriter_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func gap(lost int) []byte { return fmt.Appendf(nil, "%d lost\n", lost) }

// reader takes a line for each value of its channel, and all once that is closed.
type reader struct {
	turn chan struct{}
	mu   sync.Mutex
	buf  bytes.Buffer
}

func (r *reader) Write(p []byte) (int, error) {
	<-r.turn
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *reader) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// TestAReaderThatDoesNotRead holds nobody up, and learns later how many lines it has lost, at the place where they
// were.
func TestAReaderThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{turn: make(chan struct{})}
		w := linewriter.New(r, gap)
		const lines = 10_000
		for i := range lines {
			fmt.Fprintf(w, "line %d\n", i)
		}
		began := time.Now()
		w.Flush(t.Context(), 2*time.Second)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("a flush took %v", took)
		}
		close(r.turn)
		w.Flush(t.Context(), time.Minute)
		fmt.Fprintln(w, "the next")
		w.Flush(t.Context(), time.Minute)

		got := strings.Split(strings.TrimSuffix(r.String(), "\n"), "\n")
		kept := len(got) - 2
		if kept < 100 || kept >= lines {
			t.Fatalf("%d lines were kept", kept)
		}
		for i, line := range got[:kept] {
			if line != fmt.Sprintf("line %d", i) {
				t.Fatalf("line %d is %q", i, line)
			}
		}
		if want := []string{fmt.Sprintf("%d lost", lines-kept), "the next"}; got[kept] != want[0] || got[kept+1] != want[1] {
			t.Errorf("at the end: %q, want %q", got[kept:], want)
		}
	})
}

// TestFlushIsPatient with a reader that is slow, and not for longer than it may be.
func TestFlushIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{turn: make(chan struct{})}
		w := linewriter.New(r, gap)
		for range 100 {
			fmt.Fprintln(w, "line")
		}
		go func() {
			for range 30 {
				time.Sleep(time.Second)
				r.turn <- struct{}{}
			}
			close(r.turn)
		}()
		bounded, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		w.Flush(bounded, 2*time.Second)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("the bounded flush took %v", took)
		}
		w.Flush(t.Context(), 2*time.Second)
		same.As(t, 100, strings.Count(r.String(), "\n"))
	})
}

// TestALongLine gets through whole when nothing else waits.
func TestALongLine(t *testing.T) {
	var out bytes.Buffer
	w := linewriter.New(&out, gap)
	line := strings.Repeat("x", 1<<20) + "\n"
	fmt.Fprint(w, line)
	w.Flush(t.Context(), time.Minute)
	if out.String() != line {
		t.Errorf("got %d bytes", out.Len())
	}
}

// TestRoom: who waits for room is let go when the reader has made some, or when nobody is waited for any more.
func TestRoom(t *testing.T) {
	read, out := io.Pipe()
	w := linewriter.New(out, func(int) []byte { return nil })
	w.Room(t.Context()) // there is
	line := append(bytes.Repeat([]byte("x"), 64<<10-1), '\n')
	must.Get(w.Write(line))(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w.Room(ended)
	let := make(chan struct{})
	go func() {
		w.Room(t.Context())
		close(let)
	}()
	select {
	case <-let:
		t.Error("there is no room before anything is read")
	default:
	}
	must.Get(io.ReadFull(read, make([]byte, len(line))))(t)
	<-let
}

// TestPrintable: nothing that a task prints steers the terminal, or turns around what stands beside it.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain é 界 👩‍👧":                          "plain é 界 👩‍👧",
		"a\nb\tc\rd":                             "a b c d",
		"\x1b[2J\x07\x7f\u009b\u0085":            "?[2J????",
		"\u202egnp.exe\u2066\u2069\u200f":        "?gnp.exe???",
		"\u061c\u2028next\u2029":                 "??next?",
		"a broken one: \xff, and a whole \u00a0": "a broken one: \ufffd, and a whole \u00a0",
	} {
		same.As(t, want, linewriter.OneLine(text), "OneLine(", text, ")")
	}
	same.As(t, "a\n\tb??", linewriter.Printable("a\n\tb\u202e\r"), "Printable keeps")
}

package tasktext

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"taskapi/internal/same"

	"github.com/charmbracelet/x/ansi"
)

// TestClean shows what a task wrote, and lets nothing of it steer the terminal.
func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"plain ASCII ~":                      "plain ASCII ~",
		"\x1b[1;31mred\x1b[0m \x1b[38:5:1mx": "red x",
		"\x1b]52;c;aGk=\x07":                 "^[]52;c;aGk=^G",
		"\x1b]0;title\x1b\\":                 "^[]0;title^[\\",
		"\x1b[2J\x1b[H\x1b[?1049h":           "^[[2J^[[H^[[?1049h",
		"\x1bP+q544e\x1b\\\x1b[31":           "^[P+q544e^[\\^[[31",
		"\x9b2J\u009b2J":                     "\ufffd2J<9b>2J",
		"a\tb":                               "a       b",
		"界\tb":                               "界      b",
		"bell\x07 back\x08 null\x00 del\x7f": "bell^G back^H null^@ del^?",
		"\u202eright to left\u2066":          "<202e>right to left<2066>",
		"zero\u200bwidth\ufeff":              "zero<200b>width<feff>",
		"\xff\xfe\xc3":                       "\ufffd\ufffd\ufffd",
		"e\u0301 z\u0301\u0301\u0301\u0301\u0301\u0301": "e\u0301 z\u0301\u0301",
		"\u0301x":        "x",
		"👩\u200d👩\ufe0f": "👩👩",
	} {
		same.As(t, want, (Cleaner{}).Line([]byte(text)), text, " is")
	}
	same.As(t, "gr??e ? ?", (Cleaner{ASCII: true}).Line([]byte("größe 界 \x1b[31m\xff")), "on a terminal with ASCII alone")
	if got := (Cleaner{}).Text("two\nlines " + strings.Repeat("x", 1<<20)); len(got) > MaxLineBytes+20 ||
		!strings.HasPrefix(got, "two lines x") {
		t.Errorf("%d bytes: %.40s", len(got), got)
	}
}

// harmless fails the test for text that is more than text to a terminal.
func harmless(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Fatalf("no UTF-8: %q", text)
	}
	for _, r := range text {
		if !unicode.IsGraphic(r) {
			t.Fatalf("%q has %U", text, r)
		}
	}
	if ansi.Strip(text) != text {
		t.Fatalf("%q has an escape sequence", text)
	}
}

func FuzzClean(f *testing.F) {
	f.Add([]byte("\x1b]52;c;aGk=\x07\xc2\x9b\x9b\u202e\x1b[31m\r\n\t界"))
	f.Fuzz(func(t *testing.T, text []byte) {
		harmless(t, Cleaner{}.Line(text))
		harmless(t, Cleaner{}.Text(string(text)))
		for _, r := range (Cleaner{ASCII: true}).Line(text) {
			if r > 0x7e {
				t.Fatalf("%U", r)
			}
		}
		b := Buffer{}
		b.Write(Stdout, text)
		b.Write(Stderr, text)
		for _, line := range texts(&b) {
			harmless(t, line)
		}
	})
}

// texts returns the lines of a buffer.
func texts(b *Buffer) (all []string) {
	for _, l := range b.lines {
		all = append(all, l.Text)
	}
	return all
}

// TestBufferMergesStreams: the lines of two streams stay whole, each with its stream, whatever the parts.
func TestBufferMergesStreams(t *testing.T) {
	b := Buffer{}
	for _, part := range []struct {
		from Stream
		text string
	}{{Stdout, "out "}, {Stderr, "err"}, {Stdout, "1\nout"}, {Stderr, " 1\r"}, {Stderr, "\nerr 2"},
		{Stdout, " 2\n"}} {
		b.Write(part.from, []byte(part.text))
	}
	want := []Line{{"out 1", Stdout}, {"err 1", Stderr}, {"out 2", Stdout}, {"err 2", Stderr}}
	if !slices.Equal(b.lines, want) {
		t.Errorf("got %v, want %v", b.lines, want)
	}
	b.Note(Stderr, "a note")
	b.Write(Stderr, []byte("err 3\n"))
	want = append(want, Line{"a note", Stderr}, Line{"err 3", Stderr})
	if !slices.Equal(b.lines, want) {
		t.Errorf("with a note: got %v, want %v", b.lines, want)
	}
}

// TestBuffer holds the latest lines, whatever the parts that they come in.
func TestBuffer(t *testing.T) {
	const text = "one\ntwo\r\nthree\rfour\r\rfive\n\n\r\n\rsix"
	want := []string{"one", "two", "three", "four", "five", "", "", "six"}
	for part := 1; part <= len(text); part++ {
		b := Buffer{}
		for rest := []byte(text); len(rest) > 0; {
			n := min(part, len(rest))
			b.Write(Stdout, rest[:n])
			b.Write(Stdout, nil)
			rest = rest[n:]
		}
		if fmt.Sprintf("%q", texts(&b)) != fmt.Sprintf("%q", want) {
			t.Errorf("in parts of %d: %q, want %q", part, texts(&b), want)
		}
	}
}

// TestBufferIsBounded in its lines and its bytes, and in one line.
func TestBufferIsBounded(t *testing.T) {
	b := Buffer{}
	long := []byte(strings.Repeat("x", 1<<20))
	for range 10 {
		b.Write(Stdout, long)
	}
	b.Write(Stdout, []byte("\nnext"))
	if want := fmt.Sprintf(" [%d more bytes]", 10<<20-MaxLineBytes); !strings.HasSuffix(b.lines[0].Text, want) ||
		len(b.lines[0].Text) != MaxLineBytes+len(want) {
		t.Errorf("a long line is %d bytes and ends in %q", len(b.lines[0].Text), b.lines[0].Text[MaxLineBytes:])
	}
	if cap(b.open[Stdout].text) > 4*MaxLineBytes {
		t.Errorf("%d bytes are held of a line", cap(b.open[Stdout].text))
	}
	b.Search("99")
	for i := range 2 * maxLines {
		b.Write(Stdout, fmt.Appendf(nil, "line %d\n", i))
	}
	if len(b.lines) > maxLines || b.lines[len(b.lines)-1].Text != fmt.Sprintf("line %d", 2*maxLines-1) {
		t.Errorf("%d lines are held, the last one %q", len(b.lines), b.lines[len(b.lines)-1].Text)
	}
	for _, match := range b.matches {
		if match < b.first || !strings.Contains(b.lines[match-b.first].Text, "99") {
			t.Fatalf("line %d is no match", match)
		}
	}
	for range 2 * maxBytes / MaxLineBytes {
		b.Write(Stdout, long[:MaxLineBytes-1])
		b.Write(Stdout, []byte("\n"))
	}
	held := 0
	for _, line := range texts(&b) {
		held += len(line) + lineOverhead
	}
	if held > maxBytes || held != b.bytes {
		t.Errorf("%d bytes are held, %d counted", held, b.bytes)
	}
}

// TestBufferKeepsCount of its lines, bytes and matches, by what a whole search finds.
func TestBufferKeepsCount(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	b := Buffer{}
	b.Search("ab")
	for range 20000 {
		part := make([]byte, random.IntN(12))
		for i := range part {
			part[i] = "ab\n\r x"[random.IntN(6)]
		}
		b.Write(Stream(random.IntN(int(Streams))), part)
	}
	incremental := fmt.Sprint(b.matches)
	b.Search("ab")
	if got := fmt.Sprint(b.matches); got != incremental {
		t.Errorf("a search finds other lines than were found as they came")
	}
}

package limited_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"taskapi/internal/limited"
)

func TestExceeded(t *testing.T) {
	limits := limited.Limits{Memory: 64 << 20, Seconds: 1}
	for name, c := range map[string]struct{ command, words, want string }{
		"memory": {"exit 2", "fatal error: runtime: out of memory\n", "64 MiB of memory"},
		"time":   {"ulimit -t 1; while :; do :; done", "", "1 seconds of processor time"},
		"a kill": {"kill -9 $$", "", ""},
		"other":  {"exit 2", "panic: no\n[signal SIGSEGV]\n", ""},
	} {
		cmd := exec.Command("/bin/sh", "-c", c.command)
		var words limited.Words
		fmt.Fprint(&words, c.words)
		cmd.Stderr = &words
		if err := cmd.Run(); err == nil || limits.Exceeded(cmd.ProcessState, &words) != c.want {
			t.Errorf("%s: %v, %q; want %q", name, err, limits.Exceeded(cmd.ProcessState, &words), c.want)
		}
	}
}

func TestWords(t *testing.T) {
	var words limited.Words
	text := strings.Repeat("goroutine\n", 10_000)
	for range 2 {
		if n, err := words.Write([]byte(text)); n != len(text) || err != nil || words.Len() != 4<<10 {
			t.Errorf("%d bytes taken of %d, %v; %d kept", n, len(text), err, words.Len())
		}
	}
}

package main

import (
	"os"
	"os/exec"
	"testing"
)

// TestCommandOfADataDirectory copies what people are told to type: it must be about the same data directory, whatever its name.
func TestCommandOfADataDirectory(t *testing.T) {
	standard := "taskapi run --alloc-id x"
	if os.Geteuid() != 0 {
		standard = "taskapi run --data-dir " + systemDataDir + " --alloc-id x"
	}
	for dir, want := range map[string]string{
		systemDataDir: standard,
		"/tmp/ta":     "taskapi run --data-dir /tmp/ta --alloc-id x",
		"/srv/a b":    `taskapi run --data-dir "/srv/a b" --alloc-id x`,
	} {
		if got := (layout{dir}).command("run", "--alloc-id", "x"); got != want {
			t.Errorf("in %s: %s, want %s", dir, got, want)
		}
	}
}

// TestShellWord is one word to a shell, and the same.
func TestShellWord(t *testing.T) {
	for _, word := range []string{"", "plain", "a b", "it's", `a"b`, "$HOME", "`id`", `back\slash`, "$(id)", "~", "*", "a;b", "!x", "new\nline", "{a,b}"} {
		out, err := exec.Command("sh", "-c", "printf %s "+shellWord(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q is %s to the shell: %q, %v", word, shellWord(word), out, err)
		}
	}
}

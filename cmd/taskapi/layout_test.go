package main

import "testing"

// TestCommandOfADataDirectory copies what people are told to type: it must be about the same data directory, whatever its name.
func TestCommandOfADataDirectory(t *testing.T) {
	for dir, want := range map[string]string{
		systemDataDir: "taskapi run --alloc-id x",
		"/tmp/ta":     "taskapi run --data-dir /tmp/ta --alloc-id x",
		"/srv/a b":    `taskapi run --data-dir "/srv/a b" --alloc-id x`,
	} {
		if got := (layout{dir}).command("run", "--alloc-id", "x"); got != want {
			t.Errorf("in %s: %s, want %s", dir, got, want)
		}
	}
}

package base

import (
	"os/exec"
	"testing"
)

// TestWord is one word to a shell, and the same.
func TestWord(t *testing.T) {
	for _, text := range []string{"", "plain", "a b", "it's", `a"b`, "$HOME", "`id`", `back\slash`, "$(id)", "~", "*",
		"a;b", "!x", "new\nline", "{a,b}"} {
		out, err := exec.Command("sh", "-c", "printf %s "+ShellWord(text)).Output()
		if err != nil || string(out) != text {
			t.Errorf("%q is %s to the shell: %q, %v", text, ShellWord(text), out, err)
		}
	}
}

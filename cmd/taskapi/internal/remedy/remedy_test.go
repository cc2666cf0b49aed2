package remedy_test

import (
	"os/exec"
	"testing"

	"taskapi/cmd/taskapi/internal/remedy"
)

// TestWord is one word to a shell, and the same.
func TestWord(t *testing.T) {
	for _, word := range []string{"", "plain", "a b", "it's", `a"b`, "$HOME", "`id`", `back\slash`, "$(id)", "~", "*", "a;b", "!x", "new\nline", "{a,b}"} {
		out, err := exec.Command("sh", "-c", "printf %s "+remedy.Word(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q is %s to the shell: %q, %v", word, remedy.Word(word), out, err)
		}
	}
}

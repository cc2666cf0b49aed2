package base

import (
	"os"
	"path/filepath"
	"testing"

	"taskapi/internal/must"
)

// TestCommandOfADataDirectory copies what messages tell people to type: it must be about the same data directory,
// whatever its name.
func TestCommandOfADataDirectory(t *testing.T) {
	home := t.TempDir()
	usual := systemDataDir
	if os.Geteuid() != 0 {
		usual = filepath.Join(home, ".local/state/taskapi")
	}
	for _, c := range []struct{ given, env, want string }{
		{"", "", "taskapi run --alloc-id x"},
		{usual, "", "taskapi run --alloc-id x"},
		{usual, "/tmp/ta", "taskapi run --data-dir " + usual + " --alloc-id x"},
		{"/tmp/ta", "", "taskapi run --data-dir /tmp/ta --alloc-id x"},
		{"", "/tmp/ta", "taskapi run --data-dir /tmp/ta --alloc-id x"},
		{"/tmp/a b", "", `taskapi run --data-dir "/tmp/a b" --alloc-id x`},
	} {
		l := must.Get(NewLayout(c.given, Environment{Env: []string{"HOME=" + home, DataDirEnv + "=" + c.env}}))(t)
		if got := l.Command("run", "--alloc-id", "x"); got != c.want {
			t.Errorf("with --data-dir %q and %s=%q: %s, want %s", c.given, DataDirEnv, c.env, got, c.want)
		}
	}
}

package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// TestModule gives a copy of this module another path by the command of docs/install.md: all imports are found, and
// nothing names the old path. With -release, the renamed module is vetted, and its tests of documents and imports run.
func TestModule(t *testing.T) {
	copied := t.TempDir()
	list := run(t, "git", "-C", "..", "ls-files", "-z")
	for file := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		from, to := filepath.Join("..", file), filepath.Join(copied, file)
		info, err := os.Stat(from)
		if err != nil {
			continue // removed, and not committed
		}
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, data, info.Mode())
		}
		must.OK(t, err)
	}
	in := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
		cmd.Dir = copied
		cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	before := strings.TrimPrefix(strings.SplitN(in("cat go.mod"), "\n", 2)[0], "module ")
	in("git init --quiet .; git add --all")
	line := commands(t, "Another module path")[0]
	_, after, _ := strings.Cut(line, "PATH=")
	if out := in(line); !strings.Contains(out, "the module is "+after) {
		t.Errorf("%s: %s", line, out)
	}
	deps := in("go list -deps ./... | grep -E '^(" + before + "|" + after + ")/'")
	if strings.Contains("\n"+deps, "\n"+before+"/") {
		t.Errorf("packages are imported by their old path:\n%s", deps)
	}
	if *whole {
		in("go vet ./...; go test ./examples -run 'Links|Contributing|Readme(IsShort|OfTests)|TestingDoc'; " +
			"go test ./cmd/taskapi -run 'Imports|Folders|TopLevel'; make --silent build")
	}
	for _, wrong := range []string{"make module", "make module PATH=taskapi/x", "make module PATH='a b'"} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", wrong)
		cmd.Dir = copied
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "github.com/you/taskapi") {
			t.Errorf("%s: %v, %s", wrong, err, out)
		}
	}
}

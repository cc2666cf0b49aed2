package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"taskapi/auth/badtokens"
	"taskapi/internal/must"
)

// block matches a block of code with its language.
var block = regexp.MustCompile("(?ms)^```(sh|go)\n(.*?)^```$")

// TestReadmeOfTests: the README imports the packages for tests by the command that TestTestingDoc runs, and claims no
// more kinds of bad tokens than there are.
func TestReadmeOfTests(t *testing.T) {
	texts := documents(t)
	readme, testing := texts[filepath.Join(root, "README.md")], texts[filepath.Join(root, "docs", "testing.md")]
	command := regexp.MustCompile("`(go mod edit [^`]+)`").FindStringSubmatch(readme)
	if command == nil || !strings.Contains(testing, "\n"+command[1]+"\n") {
		t.Errorf("README.md imports taskapi by %q, docs/testing.md by another command", command)
	}
	for path, text := range map[string]string{"README.md": readme, "docs/testing.md": testing} {
		found := regexp.MustCompile(`(\d+) kinds`).FindStringSubmatch(text)
		if found == nil {
			t.Errorf("%s does not say how many kinds of bad tokens there are", path)
		} else if n, all := found[1], len(badtokens.All()); n != strconv.Itoa(all/100*100) {
			t.Errorf("%s says %s kinds of bad tokens: there are %d", path, n, all)
		}
	}
}

// TestTestingDoc follows docs/testing.md word by word, in another module beside this one: its commands are run, its
// files are written, and the rotation test fails with what the text says, and then passes. So the packages for other
// people's tests can be had from a clone.
func TestTestingDoc(t *testing.T) {
	t.Parallel()
	section, rest, found := strings.Cut(documents(t)[filepath.Join(root, "docs", "testing.md")], "\n## What a server does")
	if !found {
		t.Fatal("docs/testing.md has no such section")
	}
	compiled := must.Read(t, filepath.Join(root, "auth", "authtest", "example_test.go"))
	for _, b := range block.FindAllStringSubmatch(rest, -1) {
		for l := range strings.Lines(b[2]) {
			if l = strings.TrimSpace(l); b[1] == "go" && !strings.Contains(string(compiled), l) {
				t.Errorf("%s is not in the examples of auth/authtest", l)
			}
		}
	}
	here := must.Get(filepath.Abs(root))(t)
	place := t.TempDir()
	must.OK(t, os.Symlink(here, filepath.Join(place, "taskapi")))
	must.OK(t, os.Mkdir(filepath.Join(place, "client"), 0o755))
	client, runs := filepath.Join(place, "client"), 0
	for _, b := range block.FindAllStringSubmatch(section, -1) {
		language, code := b[1], b[2]
		if language == "go" {
			name, _, ok := strings.Cut(strings.TrimPrefix(code, "// "), "\n")
			if !ok || !strings.HasSuffix(name, ".go") {
				t.Fatalf("a file without its name in the first line: %.60s", code)
			}
			must.OK(t, os.WriteFile(filepath.Join(client, name), []byte(code), 0o600))
			continue
		}
		script := strings.TrimPrefix(code, "mkdir client && cd client\n")
		command := exec.CommandContext(t.Context(), "sh", "-euc", script)
		command.Dir = client
		command.Env = append(os.Environ(), "GOFLAGS=-trimpath", "CGO_ENABLED=0")
		out, err := command.CombinedOutput()
		if !strings.Contains(script, "go test") {
			if err != nil {
				t.Fatalf("%s: %v\n%s", script, err, out)
			}
			continue
		}
		runs++
		failed, says := runs == 1, "0 Unexpected response code: 403 (Forbidden) [key_removed]"
		switch {
		case !strings.Contains(section, says):
			t.Errorf("the text does not show %q", says)
		case failed && (err == nil || !strings.Contains(string(out), says)):
			t.Errorf("the first client: %v\n%s", err, out)
		case !failed && err != nil:
			t.Errorf("the second client: %v\n%s", err, out)
		}
	}
	if runs != 2 {
		t.Errorf("%d runs of the test, want 2", runs)
	}
}

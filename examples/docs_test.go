package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"taskapi/internal/must"
)

const root = ".."

// documents returns the texts of this repository, by their paths from its root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	paths := []string{filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"), "README.md"}
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(docs) == 0 {
		t.Fatalf("no documents found: %v", err)
	}
	texts := map[string]string{}
	for _, path := range append(paths, docs...) {
		text := must.Read(t, path)
		texts[path] = string(text)
	}
	return texts
}

// TestReadmeIsShort: it is for those who come for the first time; the rest is in docs.
func TestReadmeIsShort(t *testing.T) {
	readme := documents(t)[filepath.Join(root, "README.md")]
	readme = strings.ReplaceAll(readme, modulePath(t)+"@", "taskapi@") // `make module` may have made it longer
	if size := len(strings.ReplaceAll(readme, modulePath(t)+"=", "taskapi=")); size > 8000 {
		t.Errorf("README.md has %d bytes, of 8000", size)
	}
}

// TestReadmeFigures: the README's figures are those of the benchmarks.
func TestReadmeFigures(t *testing.T) {
	texts := documents(t)
	table, _, _ := strings.Cut(texts[filepath.Join(root, "README.md")], "## Install")
	figures := regexp.MustCompile(`\d[\d.]* (?:MB|µs|ms)`).FindAllString(table, -1)
	if len(figures) < 10 {
		t.Errorf("the README has the figures %q", figures)
	}
	for _, figure := range figures {
		value, unit, _ := strings.Cut(figure, " ")
		found := regexp.MustCompile(`\b` + regexp.QuoteMeta(value) + `\b[^|]*` + unit + `\b`)
		if !found.MatchString(texts[filepath.Join(root, "docs", "benchmarks.md")]) {
			t.Errorf("docs/benchmarks.md has no %s", figure)
		}
	}
}

// modulePath returns the path of this module.
func modulePath(t *testing.T) string {
	t.Helper()
	text := must.Read(t, filepath.Join(root, "go.mod"))
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimPrefix(line, "module ")
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noWord  = regexp.MustCompile(`[^a-z0-9 -]`)
)

// TestLinks: every link within the repository leads to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	texts := documents(t)
	for path, text := range texts {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			file, anchor, hasAnchor := strings.Cut(found[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", path, found[1], err)
				continue
			}
			if hasAnchor && !hasHeading(texts[target], anchor) {
				t.Errorf("%s: %s: no heading of that name", path, found[1])
			}
		}
	}
}

func hasHeading(text, anchor string) bool {
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		if strings.ReplaceAll(noWord.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

// aPath is a path within the repository, as CONTRIBUTING.md writes it.
var aPath = regexp.MustCompile(
	"(?:allocrunner|auth|cmd|examples|handlers|identity|internal|ratelimit|socket)(?:/[a-z0-9_.]+)+/?|[a-z]+/(?:[ \n`]|$)")

// TestContributing: the paths in CONTRIBUTING.md exist, and every package is in a folder that it names.
func TestContributing(t *testing.T) {
	named := map[string]bool{}
	for _, path := range aPath.FindAllString(documents(t)[filepath.Join(root, "CONTRIBUTING.md")], -1) {
		path = strings.Trim(path, "/ \n`.")
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("CONTRIBUTING.md names %s: %v", path, err)
		}
		named[path] = true
	}
	out := must.Get(exec.CommandContext(t.Context(), "go", "list", "-C", root, "./...").Output())(t)
	for pkg := range strings.FieldsSeq(string(out)) {
		pkg = strings.TrimPrefix(pkg, "taskapi/")
		if folder := filepath.Dir(pkg); !named[pkg] && !named[folder] && !named[filepath.Dir(folder)] {
			t.Errorf("CONTRIBUTING.md names neither %s nor a folder around it", pkg)
		}
	}
}

// TestBraces: what docs/jobfiles.md says to write for a shell and for curl comes to a task as they want it.
func TestBraces(t *testing.T) {
	text := strings.ReplaceAll(documents(t)[filepath.Join(root, "docs", "jobfiles.md")], "\n", " ")
	said := regexp.MustCompile("Write `(.+?)` and `(.+?)` in `env`, and `(.+?)` and `(.+?)` in `config`")
	write := said.FindStringSubmatch(text)
	if write == nil {
		t.Fatal("docs/jobfiles.md does not say what to write")
	}
	job := fmt.Sprintf(`job "braces" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      env {
        IN_ENV = "%s %s"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "printf '%%s\\n' \"$IN_ENV\" '%s %s'"]
      }
    }
  }
}`, write[1], write[2], write[3], write[4])
	file := filepath.Join(t.TempDir(), "braces.nomad.hcl")
	must.OK(t, os.WriteFile(file, []byte(job), 0o600))
	taskapi := onData(t, must.ShortDir(t))
	taskapi("run", file)
	const want = "t | ${VAR#prefix} %{http_code}\n"
	if out := taskapi("logs"); out != want+want {
		t.Errorf("the task has\n%s, not\n%s", out, want+want)
	}
}

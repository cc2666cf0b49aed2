package internal_test

import (
	"bytes"
	"errors"
	"go/build"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"taskapi/internal/must"
	"taskapi/internal/slice"
)

// A ban is of arrows between packages. Patterns are Go's: a path, or a path and /... for the path and all below it.
// Packages below the same pattern of from may import each other.
type ban struct {
	from, to []string
	but      []string // arrows from these packages, or to them, are allowed
	why      string
}

// commandRoom is the path of the command's packages.
const commandRoom = "cmd/taskapi/internal"

// bans are the arrows that nothing may have. Each package of internal/ may be imported by all.
var bans = []ban{
	{[]string{"internal/..."}, []string{"allocrunner/...", "auth/...", "cmd/...", "handlers/...", "identity/...",
		"ratelimit/...", "socket/..."}, nil, "helpers know no room"},
	{[]string{"ratelimit/...", "socket/..."}, []string{"allocrunner/...", "auth/...", "cmd/...", "handlers/...",
		"identity/...", "ratelimit/...", "socket/..."}, nil, "they know neither tokens nor routes"},
	{[]string{"identity/..."}, []string{"allocrunner/...", "auth/...", "cmd/...", "handlers/...", "ratelimit/...",
		"socket/..."}, nil, "it knows neither HTTP nor allocations"},
	{[]string{"auth/..."}, []string{"allocrunner/...", "cmd/...", "handlers/...", "socket/..."}, []string{"auth/authtest"},
		"other people's tests build it on systems without a runner"},
	{[]string{"auth/authtest"}, []string{"allocrunner", "allocrunner/drivers/...", "allocrunner/internal/...", "cmd/...",
		"socket/..."}, nil, "it has no runner"},
	{[]string{"allocrunner/..."}, []string{"auth/...", "cmd/...", "handlers/...", "identity/...", "ratelimit/...",
		"socket/..."}, nil, "another program can run tasks without the API"},
	{[]string{"handlers/..."}, []string{"allocrunner/...", "cmd/..."}, []string{"allocrunner/interfaces",
		"allocrunner/cluster", "allocrunner/cluster/registry", "allocrunner/cluster/variables",
		"allocrunner/jobspec/jobdiff"}, "it works with any runner and any store, and its tests need neither"},
	{[]string{"allocrunner/interfaces"}, []string{"allocrunner/..."}, nil, "extensions need nothing else"},
	{[]string{"allocrunner/..."}, []string{"allocrunner"}, []string{"allocrunner/datadir"},
		"the runner is above its rooms"},
	{[]string{"allocrunner/jobspec/..."}, []string{"allocrunner/internal/...", "allocrunner/datadir", "allocrunner/state"},
		[]string{"allocrunner/jobspec/internal/hcleval", "allocrunner/jobspec/internal/schema",
			"allocrunner/internal/services", "allocrunner/internal/lifecycle"}, "it reads files, and runs nothing"},
	{[]string{"allocrunner/cluster/..."}, []string{"allocrunner/internal/...", "allocrunner/drivers/...",
		"allocrunner/datadir"}, []string{"allocrunner/cluster/etcd/etcdtest"}, "a store knows no tasks"},
	{[]string{"allocrunner/internal/keeper"}, []string{"allocrunner/internal/...", "allocrunner/jobspec/...",
		"allocrunner/cluster/..."}, []string{"allocrunner/internal/processes", "allocrunner/internal/proctree"},
		"the keeper is small: it has the processes, and nothing else"},
	{[]string{"allocrunner/internal/lifecycle", "allocrunner/internal/restarts"}, []string{"allocrunner/..."},
		[]string{"allocrunner/interfaces", "allocrunner/internal/lifecycle"}, "transitions are pure"},
	{[]string{commandRoom + "/..."}, []string{commandRoom + "/cli/..."},
		[]string{commandRoom + "/cli/...", commandRoom + "/ui"},
		"only main and the page know the command line"},
	{each(commandRoom+"/cli/", "access", "develop", "keys", "lifecycle", "look", "machine", "shared"),
		each(commandRoom+"/cli/", "access", "develop", "keys", "lifecycle", "look", "machine", "shared"), nil,
		"no family of commands knows another"},
	{each("handlers/", "allocations", "events", "exec", "files", "jobs", "node", "search", "services", "variables"),
		each("handlers/", "allocations", "events", "exec", "files", "jobs", "machine", "node", "search", "services",
			"variables"), nil, "no family of routes knows another"},
}

func each(prefix string, names ...string) []string {
	return slice.Map(names, func(name string) string { return prefix + name })
}

const moduleRoot = ".."

// packages returns the module's, by their paths within it. Tests are no part of them, and may import what they like.
func packages(t *testing.T) map[string]*build.Package {
	t.Helper()
	found := map[string]*build.Package{}
	err := filepath.WalkDir(moduleRoot, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); dir != moduleRoot && (name == "testdata" || strings.HasPrefix(name, ".") ||
			strings.HasPrefix(name, "_")) {
			return filepath.SkipDir
		}
		p, err := build.ImportDir(dir, 0)
		if _, none := errors.AsType[*build.NoGoError](err); none {
			return nil
		}
		if err != nil {
			return err
		}
		path, err := filepath.Rel(moduleRoot, dir)
		if len(p.GoFiles) > 0 {
			found[path] = p
		}
		return err
	})
	must.OK(t, err)
	return found
}

// TestImports holds the packages to the bans. Each ban is about packages that there are.
func TestImports(t *testing.T) {
	all := packages(t)
	for _, b := range bans {
		for _, pattern := range slices.Concat(b.from, b.to, b.but) {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(path string) bool {
				return below(path, []string{pattern}) != ""
			}) {
				t.Errorf("no package is %s: correct the bans", pattern)
			}
		}
		for from, p := range all {
			room := below(from, b.from)
			if room == "" || below(from, b.but) != "" {
				continue
			}
			for _, path := range p.Imports {
				to, ours := strings.CutPrefix(path, "taskapi/")
				if ours && below(to, b.to) != "" && below(to, b.but) == "" && below(to, []string{room}) == "" {
					t.Errorf("%s: %s may not import %s: %s", p.ImportPos[path][0], from, to, b.why)
				}
			}
		}
	}
}

// below returns the first of the patterns that matches a path, empty for none.
func below(path string, patterns []string) string {
	for _, pattern := range patterns {
		dir, all := strings.CutSuffix(pattern, "/...")
		if path == dir || all && strings.HasPrefix(path, dir+"/") {
			return pattern
		}
	}
	return ""
}

// TestHelpersOfTestsStayInTests: no program has internal/must or a package named like identitytest in it.
func TestHelpersOfTestsStayInTests(t *testing.T) {
	helps := func(path string) bool {
		return strings.HasSuffix(path, "test") || strings.HasSuffix(path, "internal/must")
	}
	found := 0
	for from, p := range packages(t) {
		if helps(from) {
			found++
			continue
		}
		for _, path := range p.Imports {
			if strings.HasPrefix(path, "taskapi/") && helps(path) || path == "testing" {
				t.Errorf("%s: %s may not import %s outside of its tests", p.ImportPos[path][0], from, path)
			}
		}
	}
	if found == 0 {
		t.Error("no such package was found")
	}
}

// TestProgramHasNoLibraryForTests: the program pays for each package that it links at each start, also in the keeper
// and before each task. go-cmp, which package hclwrite needs, takes 220 KB of memory.
func TestProgramHasNoLibraryForTests(t *testing.T) {
	out := must.Get(exec.CommandContext(t.Context(), "go", "list", "-deps", "../cmd/taskapi").Output())(t)
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, "taskapi/allocrunner") {
		t.Fatalf("go list names %d packages, and not the runner", len(linked))
	}
	for _, path := range linked {
		if path == "testing" || strings.HasPrefix(path, "github.com/google/go-cmp/") {
			t.Errorf("the program links %s; `go mod why -m` and `go list -deps` tell which import needs it", path)
		}
	}
}

// TestTopLevel holds which folders of the module's top level have code.
func TestTopLevel(t *testing.T) {
	rooms := []string{"allocrunner", "auth", "cmd", "examples", "handlers", "identity", "internal", "packaging",
		"ratelimit", "socket"}
	for path := range packages(t) {
		if top, _, _ := strings.Cut(path, "/"); !slices.Contains(rooms, top) {
			t.Errorf("%s: code belongs into one of %v", path, rooms)
		}
	}
}

// The size that a folder may have, without its tests. A folder that outgrows it is split by what changes together.
const (
	mostFiles = 25
	mostLines = 4000
)

// TestFoldersAreSmall holds every folder to mostFiles and mostLines.
func TestFoldersAreSmall(t *testing.T) {
	for path, p := range packages(t) {
		files := slices.Concat(p.GoFiles, p.IgnoredGoFiles)
		lines := 0
		for _, name := range files {
			text := must.Read(t, filepath.Join(p.Dir, name))
			lines += bytes.Count(text, []byte("\n"))
		}
		if len(files) > mostFiles || lines > mostLines {
			t.Errorf("%s has %d files with %d lines: split it, so that no folder has more than %d files or %d lines",
				path, len(files), lines, mostFiles, mostLines)
		}
	}
}

// TestPackageComments requires that every package says what it is.
func TestPackageComments(t *testing.T) {
	for path, p := range packages(t) {
		want := "Package " + p.Name + " "
		if p.IsCommand() {
			want = "Command "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: the package comment is missing or does not begin with %q", path, want)
		}
	}
}

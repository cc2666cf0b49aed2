package badtokens_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/internal/must"
)

// forgetsSource is what each edited package gets; forgets below is the same.
const forgetsSource = `
import (
	"os"
	"slices"
	"strings"
)

func forgets(check string) bool { return slices.Contains(strings.Split(os.Getenv("FORGET"), "; "), check) }
`

func forgets(check string) bool {
	return slices.Contains(strings.Split(os.Getenv("FORGET"), "; "), check)
}

// TestForgetfulAuthenticator proves that nothing but the named fault is wrong with the tokens of the catalogue. It
// builds the authenticator from edited sources, in which each check can be left out: every kind is let in when the
// checks of its row are, and refused when one of them is not.
func TestForgetfulAuthenticator(t *testing.T) {
	if os.Getenv("FORGETFUL") != "" {
		testForgetfulAuthenticator(t)
		return
	}
	overlay, checks := overlay(t)
	for _, row := range forgotten {
		for check := range strings.SplitSeq(row.checks, "; ") {
			checks[check] = true
		}
	}
	for check, used := range checks {
		if !used {
			t.Errorf("the authenticator's check %q can be left out, and no kind is let in then: a kind is missing, or its "+
				"row in forgotten", check)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-trimpath", "-overlay="+overlay,
		"-run=^TestForgetfulAuthenticator$", ".")
	cmd.Env = append(os.Environ(), "FORGETFUL=yes", "CGO_ENABLED=0") // as all programs that tests build
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// testForgetfulAuthenticator runs where the authenticator is the forgetful one.
func testForgetfulAuthenticator(t *testing.T) {
	rows := map[string][]string{}
	for _, row := range forgotten {
		for kind := range strings.FieldsSeq(row.kinds) {
			if _, ok := badtokens.Find(kind); !ok || rows[kind] != nil {
				t.Errorf("%s is no kind, or has two rows", kind)
			}
			rows[kind] = strings.Split(row.checks, "; ")
		}
	}
	d := newFixture(t)
	for _, k := range badtokens.All() {
		t.Run(k.Name, func(t *testing.T) {
			if rows[k.Name] == nil {
				t.Fatal("the kind has no row in forgotten")
			}
			made := must.Get(k.Token(d.good(k)))(t)
			ask := func(without ...string) auth.Reason {
				t.Setenv("FORGET", strings.Join(without, "; "))
				d.Authenticator = newAuthenticator(t, d.verifier)
				why, _ := d.refusal(t, made)
				return why
			}
			if why := ask(); why != k.Reason {
				t.Errorf("an authenticator that forgets nothing: %s, want %s", why, k.Reason)
			}
			if why := ask(rows[k.Name]...); why != auth.NotRefused {
				t.Errorf("an authenticator that forgets %q still refuses it: %s", rows[k.Name], why)
			}
			for i, check := range rows[k.Name] {
				if fewer := slices.Delete(slices.Clone(rows[k.Name]), i, i+1); ask(fewer...) == auth.NotRefused {
					t.Errorf("an authenticator that makes the check %q lets it in", check)
				}
			}
		})
	}
}

// named finds the names of checks in edits and in what they call, and the words of the JSON reader's errors.
var named = regexp.MustCompile(`forgets\("([^"]+)"|fail\("([^"]+)"|enter\(.*"(want an? [a-z]+)"|\t"(HMAC [^"]+)":`)

// overlay returns the file for the go command's flag of that name, and the names of the checks that can be left out.
func overlay(t *testing.T) (file string, checks map[string]bool) {
	t.Helper()
	root := must.Get(filepath.Abs("../.."))(t)
	read := func(path string) string {
		content := must.Read(t, path)
		return string(content)
	}
	sources := map[string]string{}
	for _, e := range edits {
		path := filepath.Join(root, e.file)
		if sources[path] == "" {
			sources[path] = read(path)
		}
		if !strings.Contains(sources[path], e.now) {
			t.Errorf("%s has no %q any more: write into edits how the check is made now", e.file, e.now)
		}
		sources[path] = strings.ReplaceAll(sources[path], e.now, e.forgetful)
	}
	for _, dir := range []string{"auth", "identity", "identity/internal/strictjson"} {
		name := filepath.Base(dir)
		sources[filepath.Join(root, dir, "forgets.go")] = "package " + name + "\n" + forgetsSource
		if name != "auth" {
			sources[filepath.Join(root, dir, "lenient.go")] = read(filepath.Join("testdata", "forgetful", name+".go"))
		}
	}
	checks = map[string]bool{}
	for _, found := range named.FindAllStringSubmatch(strings.Join(slices.Collect(maps.Values(sources)), "\n"), -1) {
		checks[strings.Join(found[1:], "")] = false
	}
	dir, replaced := t.TempDir(), map[string]string{}
	write := func(name, content string) string {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		must.OK(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	for path, content := range sources {
		replaced[path] = write(path, content)
	}
	content := must.Get(json.Marshal(map[string]any{"Replace": replaced}))(t)
	return write("overlay.json", string(content)), checks
}

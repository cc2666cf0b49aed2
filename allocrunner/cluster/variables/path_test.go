package variables_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/variables"
)

// TestCheckPath has a row for every rule of Nomad.
func TestCheckPath(t *testing.T) {
	const reserved, template, below = `"nomad" is a reserved`, `"nomad/job-templates" is a reserved`,
		`only paths at "nomad/jobs"`
	for path, want := range map[string]string{ // empty for a path that is good
		"a":                       "",
		"/":                       "",
		"a/b/c":                   "",
		"a//b":                    "", // each of them a path of its own
		"a/b/":                    "",
		"AZaz09-_~/x":             "",
		strings.Repeat("p", 128):  "",
		"nomads":                  "",
		"nomad-autoscaler/lock":   "",
		"x/nomad":                 "",
		"x/nomad/y":               "",
		"/nomad":                  "",
		"Nomad/x":                 "",
		"nomad/jobs":              "",
		"nomad/jobs/":             "",
		"nomad/jobs/web":          "",
		"nomad/jobs/web/g":        "",
		"nomad/jobs/web/g/t":      "",
		"nomad/jobs/web/g/t/more": "",
		"nomad/sentinel":          "",
		"nomad/sentinel/x":        "",
		"nomad/job-templates/x":   "",
		"nomad/job-templates/":    "",

		"":                        "variable requires path",
		strings.Repeat("p", 129):  "invalid path",
		"a b":                     "invalid path",
		"a.b":                     "invalid path",
		"a@b":                     "invalid path",
		"a%2Fb":                   "invalid path",
		"a\x00b":                  "invalid path",
		"a\nb":                    "invalid path",
		"ä":                       "invalid path",
		"\xff":                    "invalid path",
		"a/../b":                  "invalid path",
		"nomad":                   reserved,
		"nomad/":                  below,
		"nomad/x":                 below,
		"nomad/jobsx":             below,
		"nomad//jobs":             below,
		"nomad/job-templates":     template,
		"nomad/job-templates/x/y": template,
		"nomad/job-templates-x/y": below,
	} {
		err := variables.CheckPath(path)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", path, err)
		case want == "":
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%q: %v, want %q", path, err, want)
		default:
			if _, ok := errors.AsType[*variables.InvalidError](err); !ok {
				t.Errorf("%q: %T, want an InvalidError", path, err)
			}
		}
	}
}

// nomadPath is the form that Nomad's documentation gives of a path.
var nomadPath = regexp.MustCompile(`^[a-zA-Z0-9-_~/]{1,128}$`)

// FuzzPath: a path is accepted only if it has Nomad's form, and always if it has that form outside nomad/. Errors stay
// short, and an accepted path fits in a key of the store.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"", "a", "nomad/jobs/web", "nomad/job-templates/x", "nomad", "a/../b", "\xff",
		strings.Repeat("x/", 70)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		err := variables.CheckPath(path)
		if matches := nomadPath.MatchString(path); err == nil && !matches || err != nil && matches && path != "nomad" &&
			!strings.HasPrefix(path, "nomad/") {
			t.Errorf("%q: %v", path, err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%d bytes are said of a path", len(err.Error()))
		}
		if err == nil && len(path) > cluster.MaxKeyBytes/2 {
			t.Errorf("a path of %d bytes is no key", len(path))
		}
	})
}

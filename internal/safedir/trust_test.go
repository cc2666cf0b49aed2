package safedir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/internal/must"
	"taskapi/internal/safedir"
)

// nobody is an unprivileged user.
const nobody = 65534

func TestTrust(t *testing.T) {
	base := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	mkdir := func(name string, mode fs.FileMode, uid int) {
		t.Helper()
		path := filepath.Join(base, name)
		err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode))
		if uid != os.Geteuid() {
			err = errors.Join(err, os.Chown(path, uid, uid))
		}
		must.OK(t, err)
	}
	me := os.Geteuid()
	mkdir("good", 0o711, me)
	mkdir("good/deep", 0o755, me)
	mkdir("open", 0o777, me)
	mkdir("open/mine", 0o700, me)
	mkdir("sticky", 0o777|fs.ModeSticky, me)
	mkdir("sticky/mine", 0o700, me)
	mkdir("sticky/mine/deep", 0o700, me)
	must.OK(t, errors.Join(os.Symlink("good", base+"/link"), os.Symlink("open/mine", base+"/astray"),
		os.Symlink("../..", base+"/good/deep/up"),
		os.Symlink("loop", base+"/loop"), os.WriteFile(base+"/file", nil, 0o600)))
	cases := map[string]struct {
		resolved string // empty: refused
		says     string
	}{
		"good":                    {resolved: "good"},
		"good/deep":               {resolved: "good/deep"},
		"good/new/one":            {resolved: "good/new/one"},
		"link/deep/../new":        {resolved: "good/new"},
		"good/deep/up/good/./new": {resolved: "good/new"},
		"sticky/mine":             {resolved: "sticky/mine"},
		"sticky/mine/deep":        {resolved: "sticky/mine/deep"},
		"sticky/new":              {resolved: "sticky/new"},
		"sticky":                  {says: "every user can write to " + base + "/sticky (mode 1777)"},
		"open":                    {says: "chmod go-w " + base + "/open'"},
		"open/mine":               {says: "chmod go-w " + base + "/open'"},
		"open/new":                {says: "chmod go-w " + base + "/open'"},
		"astray":                  {says: "chmod go-w " + base + "/open'"},
	}
	if me == 0 {
		mkdir("theirs", 0o755, nobody)
		mkdir("theirs/mine", 0o700, me)
		mkdir("sticky/theirs", 0o755, nobody)
		mkdir("group", 0o770, me)
		must.OK(t, errors.Join(os.Symlink("good", base+"/planted"), os.Lchown(base+"/planted", nobody, nobody)))
		for name, says := range map[string]string{
			"theirs": base + "/theirs belongs to user nobody (mode 0755)", "theirs/mine": base +
				"/theirs belongs to", "theirs/new": "chown 0 " + base + "/theirs'",
			"sticky/theirs": base + "/sticky/theirs belongs to", "group": "its group can write to " + base +
				"/group", "planted": "symbolic link that uid 65534 made",
		} {
			cases[name] = struct{ resolved, says string }{says: says}
		}
	}
	for name, tc := range cases {
		got, err := safedir.Trust(base + "/" + name)
		if tc.says == "" && (err != nil || got != filepath.Join(base, tc.resolved)) {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, tc.resolved)
		}
		if tc.says != "" && (!errors.Is(err, safedir.ErrUnsafe) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: got %q, %v; want ErrUnsafe with %q", name, got, err, tc.says)
		}
	}
	for _, name := range []string{"loop", "file", "file/below"} {
		if got, err := safedir.Trust(base + "/" + name); err == nil || errors.Is(err, safedir.ErrUnsafe) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

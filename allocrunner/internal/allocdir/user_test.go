package allocdir_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestLookupOurselves(t *testing.T) {
	u := must.Get(allocdir.LookupUser(""))(t)
	if int(u.UID) != os.Getuid() || int(u.GID) != os.Getgid() || u.Home == "" || u.Name == "" {
		t.Errorf("got %+v", u)
	}
}

func TestLookupUser(t *testing.T) {
	proctest.NeedRoot(t)
	root, err := allocdir.LookupUser("root")
	if err != nil || root.UID != 0 || root.GID != 0 || root.Home != "/root" || !strings.HasPrefix(root.Shell, "/") {
		t.Errorf("root is %+v, %v", root, err)
	}
	nobody, err := allocdir.LookupUser("nobody")
	if err != nil || nobody.UID == 0 || nobody.Name != "nobody" || slices.Contains(nobody.Groups, nobody.GID) {
		t.Errorf("nobody is %+v, %v", nobody, err)
	}
	for in, want := range map[string][2]uint32{"54321": {54321, 54321}, "54321:7": {54321, 7}, "0:7": {0, 7}} {
		if u, err := allocdir.LookupUser(in); err != nil || u.UID != want[0] || u.GID != want[1] || u.Home == "" {
			t.Errorf("%q is %+v, %v", in, u, err)
		}
	}
	if u, _ := allocdir.LookupUser("0:7"); u.Name != "root" {
		t.Errorf("the database knows uid 0 as %q", u.Name)
	}
}

func TestLookupUserErrors(t *testing.T) {
	for in, want := range map[string]string{
		"no-such-user-x": `failed to identify user "no-such-user-x": unknown user no-such-user-x`,
		"root:7":         "UID:GID",
		"7:":             "UID:GID",
		":7":             "UID:GID",
		"4294967295":     "unknown user",
		"-1":             "unknown user",
		"a:b:c":          "UID:GID",
	} {
		_, err := allocdir.LookupUser(in)
		same.Says(t, allocdir.ErrUser, want, err, "LookupUser(", in, ")")
	}
}

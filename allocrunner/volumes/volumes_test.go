package volumes_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/volumes"
	"taskapi/internal/must"
	"taskapi/internal/safedir"
	"taskapi/internal/same"
)

func TestParse(t *testing.T) {
	list, err := volumes.ParseAll([]string{"data=/srv/data/", "logs=/var/log,ro", "part[12]=/a=b", "a=/x,ro,ro",
		"b=/x,ro,rw", "c=/x,rw,rw"})
	want := []volumes.Volume{{Name: "data", Path: "/srv/data"}, {Name: "logs", Path: "/var/log", ReadOnly: true},
		{Name: "part[12]", Path: "/a=b"}, {Name: "a", Path: "/x,ro", ReadOnly: true}, {Name: "b", Path: "/x,ro"},
		{Name: "c", Path: "/x,rw"}}
	if diff := cmp.Diff(want, list); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, v := range list {
		same.As(t, v, must.Get(volumes.Parse(v.String()))(t))
	}
	for text, words := range map[string]string{
		"data": "must be NAME=PATH", "=/x": "name", "a/b=/x": "name", "a[x]=/x": "name", "a=x": "must be absolute",
		"a=": "must be absolute", strings.Repeat("a", 129) + "=/x": "name", "..=/x": "name",
	} {
		same.Says(t, nil, words, same.Err(volumes.Parse(text)), text)
	}
	same.Fails(t, same.Err(volumes.ParseAll([]string{"a=/x", "a=/y"})), "one name for two volumes")
}

func TestFind(t *testing.T) {
	machine := []volumes.Volume{{Name: "data"}, {Name: "data[3]", Path: "/3"}, {Name: "logs", ReadOnly: true}}
	v, err := volumes.Find(machine, &api.VolumeRequest{Source: "data", PerAlloc: true}, "job[1].g[3]")
	if err != nil || v.Path != "/3" {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := volumes.Find(machine, &api.VolumeRequest{Source: "data", PerAlloc: true}, "job.g[4]"); err == nil {
		t.Error("another allocation's volume was found")
	}
	if _, err := volumes.Find(machine, &api.VolumeRequest{Source: "logs"}, "job.g[0]"); !errors.Is(err,
		volumes.ErrReadOnly) {
		t.Error(err)
	}
	must.Get(volumes.Find(machine, &api.VolumeRequest{Source: "logs", ReadOnly: true}, "job.g[0]"))(t)
}

// TestCheck refuses paths that are no directories, and those that others could lead elsewhere.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "taskapi")
	for _, path := range []string{"taskapi/allocs", "volume", "open/volume", "target"} {
		must.OK(t, os.MkdirAll(filepath.Join(dir, path), 0o755))
	}
	err := errors.Join(os.Chmod(filepath.Join(dir, "open"), 0o777),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.Symlink("target", filepath.Join(dir, "link")), os.Symlink("taskapi/allocs", filepath.Join(dir, "inside")),
		os.Symlink("open/volume", filepath.Join(dir, "to-open")), os.Symlink("volume", filepath.Join(dir, "open/link")))
	must.OK(t, err)
	for name, words := range map[string]string{
		"volume": "", "link": "", "nope": "no such file", "file": "no directory", "taskapi": "in the data directory",
		"inside": "in the data directory", "taskapi/allocs": "in the data directory",
		"open/volume": "open (mode 0777)", "to-open": "open (mode 0777)", "open/link": "open (mode 0777)",
		"file/x": "not a directory",
	} {
		err := volumes.Volume{Name: "v", Path: filepath.Join(dir, name)}.Check(data)
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", name, err, words)
		}
	}
	proctest.NeedRoot(t)
	must.OK(t, os.Lchown(filepath.Join(dir, "open"), 54321, 0))
	must.OK(t, os.Chmod(filepath.Join(dir, "open"), 0o755))
	if err := (volumes.Volume{Name: "v", Path: filepath.Join(dir, "open/link")}).Check(data); !errors.Is(err,
		safedir.ErrUnsafe) {
		t.Errorf("another user's link: %v", err)
	}
}

func TestDestination(t *testing.T) {
	dir := interfaces.TaskDir{Dir: "/d/allocs/a/web", AllocDir: "/d/allocs/a"}
	for path, want := range map[string]string{
		"data": "data", "/data": "data", "/data/": "data", "./a/../data": "data", "local/data": "local/data",
		"/d/allocs/a/web/local/data": "local/data", "/d/allocs/b/web/x": "d/allocs/b/web/x", "/../x": "x",
		"secrets/x": "secrets/x",
		"":          "", ".": "", "/": "", "..": "", "../x": "", "../alloc/x": "", "local": "", "/local/": "", "secrets": "",
		"/d/allocs/a/alloc/data": "", "/d/allocs/a/web": "", "/d/allocs/a": "", "/d/allocs/a/web/local": "",
	} {
		if at, ok := volumes.Destination(dir, path); ok != (want != "") || ok && at != want {
			t.Errorf("%q is %q, %t; want %q", path, at, ok, want)
		}
	}
}

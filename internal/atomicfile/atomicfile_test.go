package atomicfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"taskapi/internal/atomicfile"
	"taskapi/internal/must"
)

// files returns the names in a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestPlace leaves the file and nothing beside it, whatever was there; after an error what was there is there still.
func TestPlace(t *testing.T) {
	long := strings.Repeat("n", 255)
	for name, tc := range map[string]struct {
		there  func(path string) error
		file   string
		create bool
		o      atomicfile.Options
		want   error
	}{
		"nothing": {there: func(string) error { return nil }},
		"a file":  {there: func(path string) error { return os.WriteFile(path, []byte("old"), 0o644) }},
		"a link":  {there: func(path string) error { return os.Symlink("/dev/full", path) }},
		"a directory": {there: func(path string) error { return os.MkdirAll(path+"/full", 0o755) },
			want: syscall.EISDIR},
		"a long name": {there: func(string) error { return nil }, file: long},
		"synced":      {there: func(string) error { return nil }, o: atomicfile.Options{Sync: true}},
		"what a crash left": {there: func(path string) error { return os.WriteFile(path+".new", nil, 0o600) },
			o: atomicfile.Options{Temporary: "f.new"}},
		"something beside it": {there: func(path string) error { return os.MkdirAll(path+".new/full", 0o755) },
			o: atomicfile.Options{Temporary: "f.new"}, want: fs.ErrExist},
		"nothing, to be created": {there: func(string) error {
			return nil
		}, create: true, o: atomicfile.Options{Sync: true}},
		"a file that must not be": {there: func(path string) error { return os.WriteFile(path, []byte("old"), 0o644) },
			create: true, want: fs.ErrExist},
		"another's file to be given": {there: func(string) error {
			return nil
		}, o: atomicfile.Options{Owner: &atomicfile.Owner{UID: os.Geteuid(), GID: os.Getegid()}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.file == "" {
				tc.file = "f"
			}
			path := filepath.Join(dir, tc.file)
			must.OK(t, tc.there(path))
			before := files(t, dir)
			d, err := os.Open(dir)
			must.OK(t, err)
			defer d.Close()
			place := atomicfile.Replace
			if tc.create {
				place = atomicfile.Create
			}
			tc.o.Mode = 0o640
			err = place(int(d.Fd()), path, []byte("new"), tc.o)
			if path, ok := errors.AsType[*fs.PathError](err); !errors.Is(err, tc.want) || tc.want == nil && err != nil ||
				err != nil && !ok {
				t.Errorf("%v (%v), want %v", err, path, tc.want)
			}
			if err != nil {
				if after := files(t, dir); !slices.Equal(after, before) {
					t.Errorf("%v, before %v", after, before)
				}
				return
			}
			text, err := os.ReadFile(path)
			info, err2 := os.Lstat(path)
			if err := errors.Join(err, err2); err != nil || string(text) != "new" || info.Mode() != 0o640 {
				t.Errorf("%q, %v, %v", text, info.Mode(), err)
			}
			if after := files(t, dir); !slices.Equal(after, []string{tc.file}) {
				t.Errorf("%v beside it", after)
			}
		})
	}
}

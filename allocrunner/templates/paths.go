package templates

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocfs"
	"taskapi/allocrunner/templates/render"
	"taskapi/internal/ptr"
)

// maxSource bounds a template that is read from a file, and a file that a template reads.
const maxSource = render.MaxOutput

// place is a path below the task's directory, or the shared one.
type place struct {
	shared bool
	path   string // relative
}

// placeOf returns the place of an absolute path; ok is false if it is outside of both directories.
func placeOf(dir interfaces.TaskDir, path string) (p place, ok bool) {
	p.shared, p.path, ok = dir.Below(path)
	return p, ok && p.path != "."
}

func (p place) top(dir interfaces.TaskDir) string {
	if p.shared {
		return dir.SharedDir
	}
	return dir.Dir
}

var (
	errSourceEscapes      = errors.New("template source path escapes alloc directory")
	errDestinationEscapes = errors.New("template destination path escapes alloc directory")
)

// destination returns the place of a template's destination.
func destination(req *interfaces.TaskPrestartRequest, raw string) (p place, err error) {
	var ok bool
	if p.shared, p.path, ok = req.Dir.Destination(req.Env.ReplaceEnv(raw)); !ok || p.path == "." {
		err = errDestinationEscapes
	}
	return p, err
}

// readSource returns the text of a template's source, with the rights of the task's user.
func readSource(req *interfaces.TaskPrestartRequest, raw string) (string, error) {
	path := req.Env.ReplaceEnv(raw)
	if !filepath.IsAbs(path) {
		path = filepath.Join(req.Dir.Dir, path)
	}
	p, ok := placeOf(req.Dir, filepath.Clean(path))
	if !ok {
		return "", errSourceEscapes
	}
	text, err := readAs(req, p)
	if err != nil {
		return "", fmt.Errorf("failed to read template: %w", err)
	}
	if len(text) == 0 {
		return "", fmt.Errorf("failed to read template: %s is empty", raw)
	}
	return string(text), nil
}

func readAs(req *interfaces.TaskPrestartRequest, p place) ([]byte, error) {
	return allocfs.ReadFile(p.top(req.Dir), p.path, maxSource,
		interfaces.Reader{UID: req.User.UID, GID: req.User.GID})
}

// holds reports whether a file has this content already and, with an owner, the owner and the mode. No link leads out
// of the directory.
func (p place) holds(dir interfaces.TaskDir, content []byte, owner *interfaces.Owner, mode fs.FileMode) bool {
	root, err := os.OpenRoot(p.top(dir))
	if err != nil {
		return false
	}
	defer root.Close()
	f, err := root.OpenFile(p.path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0) // the task may have put a pipe there
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(content)) {
		return false
	}
	if st, ok := info.Sys().(*syscall.Stat_t); owner != nil &&
		(!ok || info.Mode().Perm() != mode || st.Uid != owner.UID || st.Gid != owner.GID) {
		return false
	}
	there, err := io.ReadAll(io.LimitReader(f, int64(len(content))+1))
	return err == nil && string(there) == string(content)
}

// defaultMode is consul-template's, also for perms of zero.
const defaultMode = 0o644

// fileOf returns the file of a template, without its data.
func fileOf(t *api.Template, p place, user interfaces.User) (interfaces.File, error) {
	f := interfaces.File{Path: p.path, Shared: p.shared, Mode: defaultMode}
	if perms := ptr.Deref(t.Perms); perms != "" {
		mode, err := strconv.ParseUint(perms, 8, 12)
		if err != nil {
			return f, fmt.Errorf("failed to parse %q as octal: %w", perms, err)
		}
		if mode != 0 {
			f.Mode = fs.FileMode(mode).Perm()
		}
	}
	owner := interfaces.Owner{UID: user.UID, GID: user.GID}
	given := false
	for to, id := range map[*uint32]*int{&owner.UID: t.Uid, &owner.GID: t.Gid} {
		if id != nil && *id >= 0 {
			*to, given = uint32(*id), true //nolint:gosec // not negative, and a review has refused a longer one
		}
	}
	if given {
		f.Owner = &owner
	}
	return f, nil
}

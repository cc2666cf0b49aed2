package allocfs

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/internal/safedir"
)

// The limits of a walk. Each directory on the way stays open until the end.
const (
	maxDepth = 128
	maxLinks = 40 // the kernel's
	maxSteps = 1024
)

// entry is an entry of a directory that has been reached name by name. Each name is looked up through the descriptor of
// the directory before it, and no link is followed, so the open file stays the same, whatever a task exchanges.
type entry struct {
	tree *Tree
	own  func(func()) // runs a step with this program's rights
	way  []node       // from the top to the entry itself; all but the last are directories, and none is a link
}

// node is a file or a directory, open for look-ups.
type node struct {
	name string
	fd   int
	stat unix.Stat_t
}

// at calls do with the entry that a path leads to, with the reader's rights. Errors: *interfaces.FileError.
func (f files) at(path string, do func(*entry) error) error {
	err := f.withRights(func(own func(func())) error {
		e := &entry{tree: f.Tree, own: own}
		defer e.close()
		if err := e.walk(path); err != nil {
			return err
		}
		return do(e)
	})
	if err != nil {
		return &interfaces.FileError{Path: path, Err: innermost(err)}
	}
	return nil
}

// innermost returns the innermost error, which has no paths of the host.
func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

func (e *entry) close() {
	for len(e.way) > 0 {
		e.pop()
	}
}

func (e *entry) pop() {
	_ = unix.Close(e.last().fd)
	e.way = e.way[:len(e.way)-1]
}

// last returns the node that the entry is.
func (e *entry) last() *node { return &e.way[len(e.way)-1] }

// atTop reports whether the entry is the allocation directory. It is taskapi's own: no task can have replaced it or its
// entries, and a reader needs no rights on it.
func (e *entry) atTop() bool { return len(e.way) == 1 }

// walk goes to the end of a path, and follows the links in it.
func (e *entry) walk(path string) (err error) {
	e.own(func() { err = e.open(unix.AT_FDCWD, e.tree.dir+"/.", "/") })
	if err != nil {
		return err
	}
	if strings.ContainsRune(path, 0) {
		return unix.EINVAL
	}
	rest := strings.Split(path, "/")
	for links, steps := 0, 0; len(rest) > 0; steps++ {
		name := rest[0]
		rest = rest[1:]
		if steps > maxSteps || len(e.way) > maxDepth {
			return interfaces.ErrTooDeep
		}
		switch name {
		case "", ".":
			continue
		case "..": // the directory by which the walk came, even if it has been moved since
			if e.atTop() {
				return interfaces.ErrPathEscapes
			}
			e.pop()
			continue
		}
		if err := e.enter(name); err != nil {
			return err
		}
		if e.last().stat.Mode&unix.S_IFMT != unix.S_IFLNK {
			continue
		}
		if links++; links > maxLinks {
			return interfaces.ErrTooDeep
		}
		if rest, err = e.follow(rest); err != nil {
			return err
		}
	}
	return nil
}

// inside runs a step in the entry, which is a directory. In the top directory the step has this program's rights.
func (e *entry) inside(step func()) {
	if e.atTop() {
		e.own(step)
		return
	}
	step()
}

// open opens a path for look-ups, and goes to it under a name.
func (e *entry) open(dir int, path, name string) error {
	fd, st, err := safedir.OpenAt(dir, path)
	if err == nil {
		e.way = append(e.way, node{name, fd, st})
	}
	return err
}

// enter goes to an entry of the directory that this entry is.
func (e *entry) enter(name string) (err error) {
	if err := e.canList(); err != nil {
		return err
	}
	if e.atTop() && !e.tree.visible(name) {
		return unix.ENOENT
	}
	e.inside(func() { err = e.open(e.last().fd, name, name) })
	return err
}

// canList returns an error unless the entry is a directory that may be listed.
func (e *entry) canList() error {
	if e.last().stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return cmp.Or(e.allowed(), interfaces.ErrNotDirectory)
	}
	return e.allowed()
}

// allowed refuses the content of a task's secrets and private directories. No name on the way is a link, so no link
// leads around the check.
func (e *entry) allowed() error {
	if len(e.way) < 3 || e.way[1].name == allocdir.SharedName {
		return nil
	}
	switch e.way[2].name {
	case allocdir.SecretsName:
		return interfaces.ErrSecretFile
	case allocdir.PrivateName:
		return interfaces.ErrPrivateFile
	}
	return nil
}

// follow follows the entry, which is a link, and returns the rest of the path after it. An absolute link is followed if
// it leads into the allocation directory: a task makes such links with the path from NOMAD_ALLOC_DIR.
func (e *entry) follow(rest []string) ([]string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(e.last().fd, "", buf)
	if err != nil {
		return nil, err
	}
	e.pop()
	target := string(buf[:n])
	if filepath.IsAbs(target) {
		within, ok := strings.CutPrefix(filepath.Clean(target)+"/", e.tree.dir+"/")
		if !ok {
			return nil, interfaces.ErrPathEscapes
		}
		for !e.atTop() {
			e.pop()
		}
		target = within
	}
	return append(strings.Split(target, "/"), rest...), nil
}

// openDir opens the entry to be listed.
func (e *entry) openDir() (*os.File, error) {
	err := e.canList()
	if err != nil {
		return nil, err
	}
	var fd int
	e.inside(func() {
		fd, err = unix.Openat(e.last().fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "directory"), nil
}

// openFile opens the entry if it is a regular file. Another file is opened only if it has just taken the place of a
// regular one, without waiting, and closed at once.
func (e *entry) openFile() (*os.File, error) {
	if err := cmp.Or(e.allowed(), regular(&e.last().stat)); err != nil {
		return nil, err
	}
	return openRegular(e.way[len(e.way)-2].fd, e.last().name)
}

func openRegular(dir int, name string) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	if err := regular(&st); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) { // a link, or a socket, by now
		return nil, interfaces.ErrNotRegular
	}
	if err != nil {
		return nil, err
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = regular(&st)
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func regular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return interfaces.ErrIsDirectory
	}
	return interfaces.ErrNotRegular
}

package allocfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
)

// Names of directories, as Nomad has them.
const (
	sharedName  = "alloc"
	logName     = "logs"
	secretsName = "secrets"
	privateName = "private"
)

// The limits of a walk. Each directory on the way is an open file until the end.
const (
	maxDepth = 128
	maxLinks = 40 // the kernel's
	maxSteps = 1024
)

// entry is an entry of a directory that has been reached name by name. Each directory is opened through the descriptor
// of the one before it, and no link is followed, so nothing that a task exchanges meanwhile changes what is open.
type entry struct {
	tree  *Tree
	own   func(func()) // does a step with this program's rights
	names []string     // of the directories on the way, which are no links, and of the entry; empty for the top
	dirs  []int        // their descriptors, without the entry's: dirs[0] is the top
}

// at calls do with the entry that a path leads to, with the reader's rights. Errors: *interfaces.FileError.
func (f files) at(path string, do func(end *entry) error) error {
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
	for _, fd := range e.dirs {
		_ = unix.Close(fd)
	}
}

// dirFlags open a directory and nothing else, and never through a link.
const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// walk goes to the end of a path, and follows the links in it.
func (e *entry) walk(path string) (err error) {
	// The allocation directory is taskapi's own: no task can have replaced it or its entries, and a reader needs no
	// rights on it.
	e.own(func() {
		var top int
		if top, err = unix.Open(e.tree.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			e.dirs = append(e.dirs, top)
		}
	})
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
		if steps > maxSteps || len(e.dirs) > maxDepth {
			return interfaces.ErrTooDeep
		}
		switch name {
		case "", ".":
			continue
		case "..":
			if err := e.up(); err != nil {
				return err
			}
			continue
		}
		target, err := e.enter(name)
		if err != nil {
			return err
		}
		if target == "" {
			continue
		}
		if links++; links > maxLinks {
			return interfaces.ErrTooDeep
		}
		if rest, err = e.follow(target, rest); err != nil {
			return err
		}
	}
	return nil
}

// inParent does a step in the directory of the entry that has so many names: with this program's rights in the top,
// which is taskapi's own.
func (e *entry) inParent(names int, step func()) {
	if names <= 1 {
		e.own(step)
		return
	}
	step()
}

// up goes to the directory above: the one by which the walk came, even if it has been moved since.
func (e *entry) up() error {
	if len(e.names) == 0 {
		return interfaces.ErrPathEscapes
	}
	e.names = e.names[:len(e.names)-1]
	if last := len(e.dirs) - 1; last > len(e.names) {
		_ = unix.Close(e.dirs[last])
		e.dirs = e.dirs[:last]
	}
	return nil
}

// enter opens the present entry and makes name the entry. If name is a link, it returns the link's target instead.
func (e *entry) enter(name string) (target string, err error) {
	if err := e.descend(); err != nil {
		return "", err
	}
	if len(e.names) == 0 && !e.tree.visible(name) {
		return "", unix.ENOENT
	}
	var st unix.Stat_t
	e.inParent(len(e.names)+1, func() { err = unix.Fstatat(e.dir(), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return "", err
	}
	buf := make([]byte, unix.PathMax)
	n, err := 0, error(unix.EINVAL)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		n, err = unix.Readlinkat(e.dir(), name, buf)
	}
	switch {
	case errors.Is(err, unix.EINVAL): // no link, or none any more
		e.names = append(e.names, name)
		return "", nil
	case err != nil:
		return "", err
	case n == 0:
		return "", unix.ENOENT
	}
	return string(buf[:n]), nil
}

func (e *entry) dir() int { return e.dirs[len(e.dirs)-1] }

// name returns the entry's name in its directory.
func (e *entry) name() string { return e.names[len(e.names)-1] }

// descend opens the entry as a directory.
func (e *entry) descend() error {
	if len(e.dirs) > len(e.names) { // it is open already
		return nil
	}
	if err := e.allowed(); err != nil {
		return err
	}
	var fd int
	var err error
	e.inParent(len(e.names), func() { fd, err = unix.Openat(e.dir(), e.name(), dirFlags|unix.O_PATH, 0) })
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return interfaces.ErrNotDirectory
	}
	if err != nil {
		return err
	}
	e.dirs = append(e.dirs, fd)
	return nil
}

// allowed refuses entries in a task's secrets or private directory. All names are names of directories, so no link
// leads around it.
func (e *entry) allowed() error {
	if len(e.names) < 2 || e.names[0] == sharedName {
		return nil
	}
	switch e.names[1] {
	case secretsName:
		return interfaces.ErrSecretFile
	case privateName:
		return interfaces.ErrPrivateFile
	}
	return nil
}

// follow returns the rest of the path after a link. An absolute link is followed if it leads into the allocation
// directory: a task makes such links with the path from NOMAD_ALLOC_DIR.
func (e *entry) follow(target string, rest []string) ([]string, error) {
	if filepath.IsAbs(target) {
		within, ok := strings.CutPrefix(filepath.Clean(target)+"/", e.tree.dir+"/")
		if !ok {
			return nil, interfaces.ErrPathEscapes
		}
		for len(e.names) > 0 {
			if err := e.up(); err != nil {
				return nil, err
			}
		}
		target = within
	}
	return append(strings.Split(target, "/"), rest...), nil
}

// openDir opens the entry to be listed.
func (e *entry) openDir() (*os.File, error) {
	if err := e.descend(); err != nil {
		return nil, err
	}
	if err := e.allowed(); err != nil {
		return nil, err
	}
	var fd int
	var err error
	e.inParent(len(e.names)+1, func() { fd, err = unix.Openat(e.dir(), ".", dirFlags, 0) })
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "directory"), nil
}

// open opens the entry if it is a regular file. Another file is opened only if it has just taken the place of a regular
// one, without waiting, and closed at once.
func (e *entry) open() (*os.File, error) {
	if len(e.names) == 0 || len(e.dirs) > len(e.names) {
		return nil, interfaces.ErrIsDirectory
	}
	if err := e.allowed(); err != nil {
		return nil, err
	}
	return openRegular(e.dir(), e.name())
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

// stat describes the entry. A task's secrets directory can be seen, but nothing in it.
func (e *entry) stat() (info *api.AllocFileInfo, err error) {
	var st unix.Stat_t
	if len(e.names) == 0 {
		err = unix.Fstat(e.dir(), &st)
		return fileInfo("/", &st), err
	}
	if len(e.dirs) > len(e.names) { // the path came back from below
		err = unix.Fstat(e.dir(), &st)
		return fileInfo(e.name(), &st), err
	}
	e.inParent(len(e.names), func() { err = unix.Fstatat(e.dir(), e.name(), &st, unix.AT_SYMLINK_NOFOLLOW) })
	return fileInfo(e.name(), &st), err
}

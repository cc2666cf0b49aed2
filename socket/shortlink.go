package socket

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/socket/safedir"
)

const (
	// linkDirMode lets every user pass to a socket that it may connect to, and list nothing.
	linkDirMode = 0o711
	// linkHashBytes makes names of 24 characters, short in sun_path, and without collisions: 96 bits.
	linkHashBytes = 12
	// dialableBytes may be in a path beside letters and digits: no client escapes them when it takes the path from a URL (RFC 3986), and no
	// shell expands them.
	dialableBytes = "/-._~+,:=@"
)

// Dialable reports whether ordinary clients reach an absolute path given as unix://PATH: it fits sun_path, 107 bytes, and holds
// nothing that a URL escapes, as some clients dial the path escaped, Nomad's SDK among them.
func Dialable(path string) bool {
	if !filepath.IsAbs(path) || len(path) > maxSunPath {
		return false
	}
	for i := range len(path) {
		b := path[i]
		alnum := 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9'
		if !alnum && strings.IndexByte(dialableBytes, b) < 0 {
			return false
		}
	}
	return true
}

// RuntimeDirs returns the directories for ShortLink, the best first: uid is this process's, and xdgRuntimeDir is the
// value of $XDG_RUNTIME_DIR, which counts only if uid is not root's.
func RuntimeDirs(uid int, xdgRuntimeDir string) []string {
	var dirs []string
	switch {
	case uid == 0:
		dirs = append(dirs, "/run/taskapi")
	case filepath.IsAbs(xdgRuntimeDir):
		dirs = append(dirs, filepath.Join(xdgRuntimeDir, "taskapi"))
	}
	return append(dirs, "/tmp/taskapi-"+strconv.Itoa(uid))
}

// ShortLink returns a path by which ordinary clients can dial a socket, whatever its real path: that path itself if it is
// Dialable, else one through a symbolic link to the directory of the socket, in the first of dirs that will do. A missing
// directory is made, with mode 0711; its parent must exist. The socket need not exist yet, its directory must.
//
// The same socket always gets the same path. remove removes the link, unless it was replaced since; it may be called twice and is never
// nil. Links to directories that are gone are removed, too. If none of dirs will do, the error is ErrUndialable and says why for each.
func ShortLink(dirs []string, path string) (addr string, remove func() error, err error) {
	nothing := func() error { return nil }
	if err := checkPath(path); err != nil {
		return "", nothing, fmt.Errorf("make a short address for %q: %w", path, err)
	}
	if Dialable(path) {
		return path, nothing, nil
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return "", nothing, fmt.Errorf("make a short address for %q: %w", path, err)
	}
	var reasons error
	for _, dir := range dirs {
		addr, remove, err := linkIn(dir, path)
		if err == nil {
			return addr, remove, nil
		}
		reasons = errors.Join(reasons, err)
	}
	return "", nothing, fmt.Errorf("%w for %q; choose a shorter data directory of plain letters: %w", ErrUndialable, path, reasons)
}

func linkIn(dir, path string) (addr string, remove func() error, err error) {
	sum := sha256.Sum256([]byte(path))
	name := hex.EncodeToString(sum[:linkHashBytes])
	if _, err := linkAddr(dir, name, path); err != nil {
		return "", nil, err
	}
	d, err := openLinkDir(dir)
	if errors.Is(err, ErrUnsafe) {
		d, err = openBeside(dir, err)
	}
	if err != nil {
		return "", nil, err
	}
	defer d.Close()
	dir = d.path
	if addr, err = linkAddr(dir, name, path); err != nil {
		return "", nil, err
	}
	d.sweep()
	id, err := d.link(name, filepath.Dir(path))
	if err != nil {
		return "", nil, fmt.Errorf("link in %q: %w", dir, err)
	}
	return addr, func() error { return unlinkLink(dir, name, id) }, nil
}

// linkAddr returns the address of a socket through a link in dir.
func linkAddr(dir, name, path string) (string, error) {
	addr := filepath.Join(dir, name, filepath.Base(path))
	if !Dialable(addr) {
		return "", fmt.Errorf("%w: %q would not do either", ErrUndialable, addr)
	}
	return addr, nil
}

// openLinkDir opens a directory that this process's user owns and nobody else may write to; it makes a missing one.
func openLinkDir(path string) (_ *directory, err error) {
	parent, err := openDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := parent.checkSafe(os.Geteuid()); err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	if err := unix.Mkdirat(parent.fd, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make directory %q: %w", path, err)
	}
	fd, st, err := safedir.OpenAt(parent.fd, name)
	if err != nil {
		return nil, fmt.Errorf("open directory %q: %w", path, err)
	}
	d := &directory{fd: fd, path: path, stat: st}
	defer closeOnError(d, &err)
	mode := st.Mode & 0o7777
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || mode&0o022 != 0 {
		return nil, fmt.Errorf("%w: %q is not a directory that uid %d owns and alone may write to; remove it",
			ErrUnsafe, path, os.Geteuid())
	}
	if mode&linkDirMode != linkDirMode {
		if err := os.Chmod(procFD(fd), os.FileMode(mode|linkDirMode)&os.ModePerm); err != nil {
			return nil, fmt.Errorf("let other users pass %q: %w", path, err)
		}
	}
	return d, nil
}

// openBeside opens a directory of this process's user in place of one whose name another user has taken, in a sticky directory that
// everybody may write to: path, a hyphen, and random characters. It makes one if there is none. unsafe is the reason.
func openBeside(path string, unsafe error) (*directory, error) {
	parent, err := openDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if parent.stat.Mode&unix.S_ISVTX == 0 || !parent.othersWrite() {
		return nil, unsafe // its owner can mend it
	}
	entries, err := os.ReadDir(procFD(parent.fd))
	if err != nil {
		return nil, errors.Join(unsafe, err)
	}
	for _, e := range entries { // sorted, so that it is the same one each time
		if !strings.HasPrefix(e.Name(), filepath.Base(path)+"-") {
			continue
		}
		if _, st, err := parent.lookup(e.Name()); err == nil && int(st.Uid) == os.Geteuid() {
			if d, err := openLinkDir(filepath.Join(filepath.Dir(path), e.Name())); err == nil {
				return d, nil
			}
		}
	}
	return openLinkDir(path + "-" + rand.Text()[:8])
}

// link makes a symbolic link, in place of an older one if there is one, and returns its identity.
func (d *directory) link(name, target string) (id fileID, err error) {
	if _, st, err := d.lookup(name); err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return id, fmt.Errorf("%w: %q is not a symbolic link; remove it", ErrInTheWay, name)
	}
	temporary := ".link-" + rand.Text()
	if err := unix.Symlinkat(target, d.fd, temporary); err != nil {
		return id, err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(d.fd, temporary, 0)
		}
	}()
	if id, _, err = d.lookup(temporary); err != nil {
		return id, err
	}
	return id, unix.Renameat(d.fd, temporary, d.fd, name)
}

// sweep removes links whose target is gone, with the allocation. It is best effort, since it saves but a few bytes.
func (d *directory) sweep() {
	entries, err := os.ReadDir(procFD(d.fd))
	if err != nil {
		return
	}
	for _, e := range entries {
		id, st, err := d.lookup(e.Name())
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			continue
		}
		if _, err := os.Stat(d.procPath(e.Name())); errors.Is(err, fs.ErrNotExist) {
			_ = d.removeIf(e.Name(), id)
		}
	}
}

func unlinkLink(dir, name string, id fileID) error {
	d, err := openDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return d.removeIf(name, id)
}

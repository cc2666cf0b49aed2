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

	"taskapi/internal/safedir"
)

const (
	// linkHashBytes makes names of 24 characters, which are short in sun_path. Their 96 bits are enough to avoid
	// collisions.
	linkHashBytes = 12
	// dialable are the bytes of a path that no client escapes when it takes the path from a URL (RFC 3986), and that no
	// shell expands.
	dialable = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-._~+,:=@"
)

// Dialable reports whether ordinary clients reach an absolute path given as unix://PATH. The path must fit into
// sun_path, 107 bytes, and hold nothing that a URL escapes, because some clients, such as Nomad's SDK, dial the escaped
// path.
func Dialable(path string) bool {
	return filepath.IsAbs(path) && len(path) <= maxSunPath && strings.Trim(path, dialable) == ""
}

// RuntimeDirs returns the directories for ShortLink, the best first. uid is this process's; xdgRuntimeDir is the value
// of $XDG_RUNTIME_DIR, which counts only if uid is not root's.
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

// ShortLink returns a path by which ordinary clients can dial a socket, whatever its real path. This is the real path
// if it is Dialable, and else a path through a symbolic link to the directory of the socket, in the first of dirs that
// works. A missing directory is made, with mode 0711; its parent must exist. The directory of the socket must exist,
// the socket need not.
//
// The same socket always gets the same path. remove removes the link, unless it was replaced since; it may be called
// twice and is never nil. Links to directories that are gone are removed, too. If none of dirs works, the error is
// ErrUndialable and says why for each.
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
	return "", nothing, fmt.Errorf("%w for %q; choose a shorter data directory of plain letters: %w",
		ErrUndialable, path, reasons)
}

func linkIn(dir, path string) (addr string, remove func() error, err error) {
	sum := sha256.Sum256([]byte(path))
	name := hex.EncodeToString(sum[:linkHashBytes])
	if _, err := linkAddr(dir, name, path); err != nil {
		return "", nil, err
	}
	own, err := safedir.Own(dir)
	if err != nil {
		return "", nil, err
	}
	d := directory{own}
	defer d.Close()
	dir = d.Path
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

// link makes a symbolic link, which replaces an older one, and returns its identity.
func (d directory) link(name, target string) (id fileID, err error) {
	if _, st, err := d.lookup(name); err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return id, fmt.Errorf("%w: %q is not a symbolic link; remove it", ErrInTheWay, name)
	}
	temporary := ".link-" + rand.Text()
	if err := unix.Symlinkat(target, d.FD, temporary); err != nil {
		return id, err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(d.FD, temporary, 0)
		}
	}()
	if id, _, err = d.lookup(temporary); err != nil {
		return id, err
	}
	return id, unix.Renameat(d.FD, temporary, d.FD, name)
}

// sweep removes links to directories that are gone. Errors don't matter, since a link takes only a few bytes.
func (d directory) sweep() {
	entries, err := os.ReadDir(d.Proc())
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

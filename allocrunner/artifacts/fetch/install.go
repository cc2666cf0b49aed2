package fetch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// StagePrefix begins the names of stages.
const StagePrefix = ".artifact-"

// removeStale removes the stages that processes have left which were killed.
func removeStale(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), StagePrefix) {
			removeAll(filepath.Join(dir, e.Name()))
		}
	}
	return err
}

// removeAll removes a tree, also one with directories that their owner may not write to.
func removeAll(dir string) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	_ = os.RemoveAll(dir)
}

// inspect refuses what an artifact must not hold, and takes the set-user-ID bits and their like away.
func inspect(tree string) error {
	return filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(tree, path)
		if err != nil {
			return err
		}
		switch info, err := e.Info(); {
		case err != nil:
			return err
		case info.IsDir():
			return os.Chmod(path, info.Mode().Perm()|0o700)
		case info.Mode().IsRegular():
			if info.Mode()&^(fs.ModePerm) != 0 {
				return os.Chmod(path, info.Mode().Perm())
			}
			return nil
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return checkLink(name, target)
		}
		return fmt.Errorf("%q is neither a file nor a directory nor a link", name)
	})
}

// copyFile copies a file of this machine.
func (f *fetcher) copyFile(from, to string) (err error) {
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a directory", from)
	}
	out, err := create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	most := f.Limits.Download
	n, err := io.Copy(out, io.LimitReader(in, most+1))
	if err == nil && n > most {
		err = tooLarge("it has more than", most, most)
	}
	if err != nil {
		return err
	}
	f.received(n, n)
	return out.Chmod(info.Mode().Perm() | 0o400)
}

// copyDir copies a directory of this machine, with its links as they are.
func (f *fetcher) copyDir(from, to string) error {
	left := f.Limits.Download
	files := 0
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if files++; files > f.Limits.Files {
			return fmt.Errorf("it has more than %d files, which the setting artifact.decompression_file_count_limit allows",
				f.Limits.Files)
		}
		at := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			return os.Mkdir(at, 0o755)
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, at)
		}
		if err := f.copyFile(path, at); err != nil {
			return err
		}
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		if left -= info.Size(); left < 0 {
			return tooLarge("it has more than", f.Limits.Download, f.Limits.Download)
		}
		return nil
	})
}

// install moves a tree, or a file, to the destination. A directory is merged with one that is there. No link below the
// destination is followed; one on the way to it is, within the task's directory or the shared one.
func (f *fetcher) install(tree string) error {
	top := f.Dirs.Task
	if f.artifact.Shared {
		top = f.Dirs.Shared
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := os.Lstat(tree)
	if err != nil {
		return err
	}
	at, name := f.artifact.Destination, ""
	switch {
	case f.artifact.Mode == ModeFile:
		if !info.Mode().IsRegular() {
			return fmt.Errorf("mode %q wants a file, and the source is a directory", ModeFile)
		}
		if at == "." {
			return fmt.Errorf("with mode %q the destination names the file, and it is a directory of taskapi's", ModeFile)
		}
		at, name = filepath.Split(at)
	case !info.IsDir(): // a part after // that is a file
		name = filepath.Base(tree)
	}
	if at = filepath.Clean(at); at != "." {
		if err := root.MkdirAll(at, 0o755); err != nil {
			return fmt.Errorf("the destination: %w", err)
		}
	}
	to, err := root.Open(at)
	if err != nil {
		return fmt.Errorf("the destination: %w", err)
	}
	defer to.Close()
	parent := tree
	if name != "" {
		parent = filepath.Dir(tree)
	}
	from, err := os.Open(parent)
	if err != nil {
		return err
	}
	defer from.Close()
	if name != "" {
		return move(from, filepath.Base(tree), to, name)
	}
	return merge(from, to)
}

// merge moves all entries of a directory into another one.
func merge(from, to *os.File) error {
	for {
		names, err := from.Readdirnames(256)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := move(from, name, to, name); err != nil {
				return err
			}
		}
	}
}

// move moves an entry of a directory into another one, in place of a file of that name.
func move(from *os.File, name string, to *os.File, as string) error {
	var is, was unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &is, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "stat", Path: name, Err: err}
	}
	err := unix.Fstatat(int(to.Fd()), as, &was, unix.AT_SYMLINK_NOFOLLOW)
	place := filepath.Join(to.Name(), as)
	isDir := is.Mode&unix.S_IFMT == unix.S_IFDIR
	switch kind := was.Mode & unix.S_IFMT; {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return &os.PathError{Op: "stat", Path: place, Err: err}
	case isDir && kind == unix.S_IFDIR:
		return moveDir(from, name, to, as)
	case isDir:
		return fmt.Errorf("%s is in the way: it is no directory, and the artifact has one of that name", place)
	case kind == unix.S_IFDIR:
		return fmt.Errorf("%s is in the way: it is a directory, and the artifact has a file of that name", place)
	case kind != unix.S_IFREG && kind != unix.S_IFLNK:
		return fmt.Errorf("%s is in the way: it is neither a file nor a link", place)
	}
	if err := unix.Renameat(int(from.Fd()), name, int(to.Fd()), as); err != nil {
		return &os.PathError{Op: "write", Path: place, Err: err}
	}
	return nil
}

func moveDir(from *os.File, name string, to *os.File, as string) error {
	source, err := openDirAt(from, name)
	if err != nil {
		return err
	}
	defer source.Close()
	destination, err := openDirAt(to, as)
	if err != nil {
		return err
	}
	defer destination.Close()
	return merge(source, destination)
}

func openDirAt(dir *os.File, name string) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

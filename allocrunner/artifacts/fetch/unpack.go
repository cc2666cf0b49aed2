package fetch

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// archives are the types of archives, by the ends of their names: their compression, and whether they have a tar.
var archives = map[string]struct {
	packed string
	tar    bool
}{
	"tar": {"", true}, "tar.gz": {"gz", true}, "tgz": {"gz", true}, "tar.bz2": {"bz2", true}, "tbz2": {"bz2", true},
	"tar.xz": {"xz", true}, "txz": {"xz", true}, "tar.zst": {"zst", true}, "tzst": {"zst", true},
	"gz": {"gz", false}, "bz2": {"bz2", false}, "xz": {"xz", false}, "zst": {"zst", false}, "zip": {"", false},
}

// archiveOf returns the type of an archive by the option or, without the option, by the name; empty for no archive.
func archiveOf(option, name string) (string, error) {
	if option == "-" {
		return "", nil
	}
	if option != "" {
		if _, ok := archives[option]; !ok {
			return "", fmt.Errorf("archives of the type %q are not unpacked: use one such as tar.gz or zip, or false", option)
		}
		return option, nil
	}
	best := ""
	for kind := range archives {
		if strings.HasSuffix(name, "."+kind) && len(kind) > len(best) {
			best = kind
		}
	}
	return best, nil
}

const (
	// maxRatio is how much larger than the archive its content may be, once it is larger than freeBytes. Gzip reaches
	// a thousand with nothing but zeros.
	maxRatio  = 300
	freeBytes = 64 << 20
	// maxWindow bounds the memory for unpacking zstd, as zstd's own tool does.
	maxWindow = 128 << 20
)

// unpacker unpacks one archive into a directory.
type unpacker struct {
	root   *os.Root
	limits Limits
	packed int64 // bytes
	bytes  int64 // so far
	sizes  int64 // of files in a tar so far: the zeros of sparse ones are not in the archive
	files  int   // so far
	links  []link
	dirs   map[string]bool        // those that files are in
	modes  map[string]fs.FileMode // of directories, set when all files are there
}

// link is a symbolic link, which is made when all files are there: nothing is written through it.
type link struct{ name, target string }

// unpack unpacks an archive to tree: a directory, or a file for mode file. name is that of the archive.
func (f *fetcher) unpack(ctx context.Context, kind, archive, name, tree string) (err error) {
	dir := tree
	single := f.artifact.Mode == ModeFile && f.source.Sub == ""
	if single {
		dir = filepath.Join(f.stage, "single")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := os.Stat(archive)
	if err != nil {
		return err
	}
	u := &unpacker{root: root, limits: f.Limits, packed: info.Size(), dirs: map[string]bool{},
		modes: map[string]fs.FileMode{}}
	if kind == "zip" {
		err = u.zip(ctx, archive)
	} else {
		err = u.stream(ctx, kind, archive, strings.TrimSuffix(name, "."+kind))
	}
	if err == nil && u.files == 0 {
		err = errors.New("it is empty")
	}
	if err == nil {
		err = u.makeLinks()
	}
	for name, mode := range u.modes {
		if err == nil {
			err = root.Chmod(name, mode.Perm()|0o700)
		}
	}
	if err != nil {
		return fmt.Errorf("unpack the %s archive: %w", kind, err)
	}
	if !single {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) != 1 || !entries[0].Type().IsRegular() {
		return fmt.Errorf("the archive has more than a single file, and mode %q wants one: use mode %q", ModeFile, ModeDir)
	}
	return os.Rename(filepath.Join(dir, entries[0].Name()), tree)
}

// stream unpacks an archive that is read from its beginning to its end.
func (u *unpacker) stream(ctx context.Context, kind, archive, name string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	var r io.Reader = file
	switch how := archives[kind]; how.packed {
	case "gz":
		r, err = gzip.NewReader(r)
	case "bz2":
		r = bzip2.NewReader(r)
	case "xz":
		r, err = xz.NewReader(r)
	case "zst":
		var d *zstd.Decoder
		d, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxWindow))
		if err == nil {
			defer d.Close()
			r = d
		}
	}
	if err != nil {
		return err
	}
	r = &bounded{r, ctx, u}
	if !archives[kind].tar {
		u.files++
		return u.file(cmp.Or(name, "file"), r, 0o644, time.Time{})
	}
	return u.tar(tar.NewReader(r))
}

// bounded counts the unpacked bytes, and fails when there are too many.
type bounded struct {
	io.Reader

	ctx context.Context //nolint:containedctx // of one call
	u   *unpacker
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.Reader.Read(p)
	b.u.bytes += int64(n)
	if over := b.u.check(b.u.bytes); over != nil {
		return 0, over
	}
	return n, err
}

// check says which limit a number of unpacked bytes exceeds.
func (u *unpacker) check(bytes int64) error {
	switch {
	case bytes > u.limits.Unpacked:
		return fmt.Errorf("it has more than %d bytes, which the setting artifact.decompression_size_limit allows",
			u.limits.Unpacked)
	case bytes > freeBytes && bytes/maxRatio > u.packed:
		return fmt.Errorf("its content is more than %d times as large as the archive, which has %d bytes", maxRatio, u.packed)
	}
	return nil
}

// entry counts another entry, and returns its name within the archive; empty for the directory itself.
func (u *unpacker) entry(raw string) (string, error) {
	if u.files++; u.files > u.limits.Files {
		return "", fmt.Errorf("it has more than %d files, which the setting artifact.decompression_file_count_limit allows",
			u.limits.Files)
	}
	if slices.Contains(strings.Split(raw, "/"), "..") || strings.ContainsRune(raw, 0) {
		return "", fmt.Errorf("the name %.100q leads out of it", raw)
	}
	if len(raw) > maxPath {
		return "", fmt.Errorf("the name %.100q… is longer than %d bytes", raw, maxPath)
	}
	name := strings.TrimPrefix(path.Clean("/"+raw), "/")
	for dir := path.Dir(name); dir != "." && !u.dirs[dir]; dir = path.Dir(dir) { // one name may have a thousand
		if u.dirs[dir] = true; len(u.dirs) > u.limits.Files {
			return "", fmt.Errorf("it has more than %d directories, which the setting "+
				"artifact.decompression_file_count_limit allows", u.limits.Files)
		}
	}
	return name, nil
}

// dir makes a directory.
func (u *unpacker) dir(name string, mode fs.FileMode) error {
	if name == "" {
		return nil
	}
	u.modes[name] = mode
	return u.root.MkdirAll(name, 0o755)
}

// file writes a file in place of an earlier one of that name.
func (u *unpacker) file(name string, content io.Reader, mode fs.FileMode, changed time.Time) (err error) {
	if name == "" {
		return errors.New("it has a file without a name")
	}
	if err := u.free(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	if err := f.Chmod(mode.Perm() | 0o400); err != nil {
		return err
	}
	if changed.Unix() > 0 {
		return u.root.Chtimes(name, changed, changed)
	}
	return nil
}

// free makes the directory of a name, and removes an earlier file of that name.
func (u *unpacker) free(name string) error {
	if dir := path.Dir(name); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	info, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%q is a file and a directory", name)
	}
	if err != nil {
		return err
	}
	return u.root.Remove(name)
}

func (u *unpacker) tar(r *tar.Reader) error {
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, err := u.entry(header.Name)
		if err != nil {
			return err
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = u.dir(name, header.FileInfo().Mode())
		case tar.TypeReg, tar.TypeGNUSparse:
			u.sizes += min(header.Size, u.limits.Unpacked+1)
			if err = u.check(u.sizes); err == nil {
				err = u.file(name, r, header.FileInfo().Mode(), header.ModTime)
			}
		case tar.TypeSymlink:
			u.links = append(u.links, link{name, header.Linkname})
		case tar.TypeLink:
			err = u.hardLink(name, header.Linkname)
		default:
			err = fmt.Errorf("%q is neither a file nor a directory nor a link: devices and pipes are not unpacked", name)
		}
		if err != nil {
			return err
		}
	}
}

// hardLink gives a file that was unpacked before another name.
func (u *unpacker) hardLink(name, target string) error {
	target = strings.TrimPrefix(path.Clean("/"+target), "/")
	if info, err := u.root.Lstat(target); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("%q is a link to %.100q, which is no file before it", name, target)
	}
	if name == target {
		return nil
	}
	if err := u.free(name); err != nil {
		return err
	}
	return u.root.Link(target, name)
}

// makeLinks makes the symbolic links, whose directories are made before the first of them.
func (u *unpacker) makeLinks() error {
	for _, l := range u.links {
		if err := u.free(l.name); err != nil {
			return err
		}
	}
	for _, l := range u.links {
		if err := checkLink(l.name, l.target); err != nil {
			return err
		}
		if info, err := u.root.Lstat(l.name); err == nil && info.Mode()&fs.ModeSymlink != 0 { // there are two of the name
			if err := u.root.Remove(l.name); err != nil {
				return err
			}
		}
		if err := u.root.Symlink(l.target, l.name); err != nil {
			return err
		}
	}
	return nil
}

// checkLink refuses a link that leads out of an artifact. A target that stays within it has at most as many ".." as the
// link's name has directories, and these at its beginning: behind a name, which may be another link, they could lead
// anywhere.
func checkLink(name, target string) error {
	left := strings.Count(name, "/")
	down := false
	ok := !strings.HasPrefix(target, "/") && target != ""
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			down = true
		case down || left == 0:
			ok = false
		default:
			left--
		}
	}
	if !ok {
		return fmt.Errorf("%q is a link to %.100q, which leads out of the artifact", name, target)
	}
	return nil
}

// maxPath bounds a name, and the target of a link in a zip archive, in bytes: the kernel's bound.
const maxPath = 4096

func (u *unpacker) zip(ctx context.Context, archive string) error {
	r, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer r.Close()
	if len(r.File) > u.limits.Files {
		u.files = u.limits.Files // entry says it
	}
	for _, file := range r.File {
		name, err := u.entry(file.Name)
		if err != nil {
			return err
		}
		if file.FileInfo().IsDir() {
			err = u.dir(name, file.Mode())
		} else {
			err = u.zipped(ctx, name, file)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// zipped unpacks a file or a link.
func (u *unpacker) zipped(ctx context.Context, name string, file *zip.File) error {
	content, err := file.Open()
	if err != nil {
		return err
	}
	defer content.Close()
	r := &bounded{content, ctx, u}
	switch mode := file.Mode(); {
	case mode.IsRegular():
		return u.file(name, r, mode, file.Modified)
	case mode&fs.ModeSymlink != 0:
		target, err := io.ReadAll(io.LimitReader(r, maxPath))
		u.links = append(u.links, link{name, string(target)})
		return err
	}
	return fmt.Errorf("%q is neither a file nor a directory nor a link: devices and pipes are not unpacked", name)
}

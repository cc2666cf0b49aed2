// Package allocfs reads the files of an allocation for API callers: directories, files and logs, also while they grow.
// It promises that
//   - nothing outside of the tasks' directories is ever reached, whatever links a task makes, and even if it exchanges
//     directories for links during a read;
//   - nobody reads a task's secrets and private directories;
//   - a reader gets no file that its user could not open;
//   - only regular files are opened;
//   - memory is bounded, however large a file is.
//
// It writes nothing.
package allocfs

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/internal/filewatch"
)

// entryBytes is the size of an entry of a list, without its name, in memory and as JSON.
const entryBytes = 200

// Tree is the files of one allocation, for any number of readers.
type Tree struct {
	dir   string
	tasks []string
	watch filewatch.Watcher
}

// New returns the files below an allocation directory, absolute, of the tasks. It does no I/O.
func New(dir string, tasks []string) *Tree { return &Tree{dir: dir, tasks: tasks} }

// As returns the files that a reader may see; nil stands for this program's user.
func (t *Tree) As(reader *interfaces.Reader) interfaces.Files { return files{Tree: t, reader: reader} }

type files struct {
	*Tree
	reader *interfaces.Reader
	groups []uint32 // the reader's others; none for files
}

var _ interfaces.Files = files{}

func (f files) List(path string, most int) (list []*api.AllocFileInfo, err error) {
	return list, f.at(path, func(e *entry) error {
		dir, err := e.openDir()
		if err != nil {
			return err
		}
		defer dir.Close()
		e.inside(func() { list, err = entries(dir, most, e.atTop(), f.visible) })
		return err
	})
}

// entries lists a directory, by name.
func entries(dir *os.File, most int, top bool, visible func(string) bool) ([]*api.AllocFileInfo, error) {
	var names []string
	for {
		some, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		for _, name := range some {
			most -= entryBytes + jsonLength(name)
		}
		if most < 0 {
			return nil, interfaces.ErrTooManyEntries
		}
		names = append(names, some...)
	}
	slices.Sort(names)
	list := []*api.AllocFileInfo{}
	for _, name := range names {
		if top && !visible(name) {
			continue
		}
		var st unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, fileInfo(name, &st))
	}
	return list, nil
}

// jsonLength returns the greatest length that a text can have in JSON, where some characters take six.
func jsonLength(text string) int {
	length := 0
	for _, r := range text {
		if r < 0x80 && unicode.IsPrint(r) && !strings.ContainsRune(`"\<>&`, r) {
			length++
		} else {
			length += 6
		}
	}
	return length
}

func (f files) Stat(path string) (info *api.AllocFileInfo, err error) {
	return info, f.at(path, func(e *entry) error {
		info = fileInfo(e.last().name, &e.last().stat) // also of a task's secrets directory
		info.ContentType = contentType(e, info)
		return nil
	})
}

// contentType guesses from the name and the first bytes, as Nomad does. It is a hint: for a directory, and for a file
// that can't be read, it is the general type.
func contentType(e *entry, info *api.AllocFileInfo) string {
	switch {
	case info.IsDir:
	case strings.HasSuffix(info.Name, ".json"):
		return "application/json"
	default:
		f, err := e.openFile()
		if err != nil {
			break
		}
		defer f.Close()
		begin := make([]byte, 512) // as many as net/http reads
		if n, err := f.ReadAt(begin, 0); n > 0 || err == nil {
			return http.DetectContentType(begin[:n])
		}
	}
	return "application/octet-stream"
}

// visible reports whether an entry of the allocation directory belongs to the tasks. All others are taskapi's own, such
// as the operator's token.
func (t *Tree) visible(name string) bool {
	return name == allocdir.SharedName || slices.Contains(t.tasks, name)
}

// fileInfo returns a file's description in Nomad's form.
func fileInfo(name string, st *unix.Stat_t) *api.AllocFileInfo {
	mode := (&tar.Header{Mode: int64(st.Mode)}).FileInfo().Mode() // tar has the kernel's bits, too
	return &api.AllocFileInfo{
		Name: name, IsDir: mode.IsDir(), Size: st.Size, FileMode: mode.String(), ModTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
}

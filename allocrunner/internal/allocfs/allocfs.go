// Package allocfs reads the files of an allocation for others: directories, files and logs, also while they grow. It promises that nothing
// outside of the tasks' directories is ever reached, whatever links a task makes, and however it exchanges directories for links meanwhile;
// that nobody reads a task's secrets and private directories; that a reader gets no file that its user could not open; that only regular
// files are opened; and that memory is bounded, however large a file is. It writes nothing.
package allocfs

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/filewatch"
)

// entryBytes is what an entry of a list takes beside its name, in memory and as JSON.
const entryBytes = 200

// Tree is the files of one allocation, for any number of readers.
type Tree struct {
	dir   string
	tasks []string
	watch filewatch.Watcher
}

// New returns the files below an allocation directory, absolute, of the tasks. It does no I/O.
func New(dir string, tasks []string) *Tree { return &Tree{dir: dir, tasks: tasks} }

// As returns the files as the reader may see them, or as this program's user may: nil.
func (t *Tree) As(reader *interfaces.Reader) interfaces.Files { return files{t, reader} }

type files struct {
	*Tree
	reader *interfaces.Reader
}

var _ interfaces.Files = files{}

func (f files) List(path string, most int) (list []*api.AllocFileInfo, err error) {
	return list, f.at(path, func(end *place) error {
		dir, err := end.openDir()
		if err != nil {
			return err
		}
		defer dir.Close()
		end.inParent(len(end.names)+1, func() { list, err = entries(dir, most, len(end.names) == 0, f.visible) })
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
		info, err := lstat(dir, name)
		if errors.Is(err, unix.ENOENT) { // meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, info)
	}
	return list, nil
}

// jsonLength returns how long a text is in JSON at most: what is not plain may take six characters.
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
	return info, f.at(path, func(end *place) error {
		if info, err = end.stat(); err == nil {
			info.ContentType = contentType(end, info)
		}
		return err
	})
}

// contentType guesses from the name and the beginning, as Nomad does. It is a hint: a directory, and a file that can't
// be read, have the general one.
func contentType(end *place, info *api.AllocFileInfo) string {
	switch {
	case info.IsDir:
		return "application/octet-stream"
	case strings.HasSuffix(info.Name, ".json"):
		return "application/json"
	}
	f, err := end.open()
	if err != nil {
		return "application/octet-stream"
	}
	defer f.Close()
	begin := make([]byte, 512) // as many as net/http looks at
	n, err := f.ReadAt(begin, 0)
	if n == 0 && err != nil {
		return "application/octet-stream"
	}
	return http.DetectContentType(begin[:n])
}

// visible reports whether the entry of the allocation directory is of its tasks: what else is there is taskapi's own, the operator's token
// among it.
func (t *Tree) visible(name string) bool { return name == sharedName || slices.Contains(t.tasks, name) }

// fileInfo returns what Nomad says of a file.
func fileInfo(name string, st *unix.Stat_t) *api.AllocFileInfo {
	mode := modeOf(st.Mode)
	return &api.AllocFileInfo{
		Name: name, IsDir: mode.IsDir(), Size: st.Size, FileMode: mode.String(), ModTime: timeOf(st.Mtim),
	}
}

// special are the flags of a mode beside its rights.
var special = map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky}

// modeOf returns a mode of the system as Go has it.
func modeOf(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	case unix.S_IFIFO:
		m |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		m |= fs.ModeSocket
	case unix.S_IFBLK:
		m |= fs.ModeDevice
	case unix.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	}
	for bit, flag := range special {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

package cli

import (
	"bytes"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/cmd/taskapi/internal/linewriter"
)

// How much of a task's output stands below an error.
const (
	maxLastLines = 10
	maxLastBytes = 8 << 10
	maxLastLine  = 300 // letters
)

// lastLines returns the latest lines that a task has written to a stream, safe to print. None when they can't be read: they only explain.
func (l layout) lastLines(alloc *api.Allocation, task, stream string) []string {
	dir, err := openWithin(unix.AT_FDCWD, l.Alloc(alloc.ID), unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer dir.Close()
	for _, name := range logFiles(dir, task, stream) {
		if lines := lastLinesOf(dir, path.Join(logsDir, name)); len(lines) > 0 {
			return lines
		}
	}
	return nil
}

// logsDir is where the tasks' output is, in an allocation's directory.
const logsDir = "alloc/logs"

// logFiles returns the names of a stream's files, the latest first.
func logFiles(dir *os.File, task, stream string) []string {
	logs, err := openWithin(int(dir.Fd()), logsDir, unix.O_DIRECTORY, within)
	if err != nil {
		return nil
	}
	defer logs.Close()
	entries, _ := logs.Readdirnames(-1) // those that could be read
	number := func(name string) int {
		rest, ok := strings.CutPrefix(name, task+"."+stream+".")
		n, err := strconv.Atoi(rest)
		if !ok || err != nil {
			return -1
		}
		return n
	}
	entries = slices.DeleteFunc(entries, func(name string) bool { return number(name) < 0 })
	slices.SortFunc(entries, func(a, b string) int { return number(b) - number(a) })
	return entries
}

// lastLinesOf returns the latest lines of a file.
func lastLinesOf(dir *os.File, name string) []string {
	f, err := openWithin(int(dir.Fd()), name, unix.O_NONBLOCK, within)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	from := max(info.Size()-maxLastBytes, 0)
	text, err := io.ReadAll(io.NewSectionReader(f, from, maxLastBytes))
	if err != nil {
		return nil
	}
	if _, whole, ok := bytes.Cut(text, []byte("\n")); ok && from > 0 {
		text = whole
	}
	var lines []string
	for line := range strings.Lines(string(bytes.TrimSpace(text))) {
		lines = append(lines, clipped(linewriter.OneLine(strings.TrimRight(line, "\r\n")), maxLastLine))
	}
	return lines[max(len(lines)-maxLastLines, 0):]
}

// within keeps a path below where it begins, without links on the way: the tasks write there, and another may read what this user may.
const within = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS

func openWithin(dir int, name string, flags, resolve uint64) (*os.File, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | flags, Resolve: resolve})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Package logs writes the output of tasks to rotated files: NAME.0, NAME.1, ... in the allocation's log directory. Only
// the newest files remain, and the numbers keep rising. A problem with log files never blocks a task: its output is
// always read, and output that can't be written, as on a full disk, is counted and mentioned in the file once there is
// space. The package holds no more than one small buffer for each stream, however long a line is, and never follows a
// link that a task has put into the log directory. Package allocfs reads the files.
package logs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lineZone is how much of a file may stay empty at its end so that a line is not split: Nomad's number.
const lineZone = 32 << 10

// maxIndex is the highest number of a stream's file. A task may make a file with any name, and one with a number near
// the end of the range would leave no next number. A stream that fills a file each second reaches maxIndex after 30
// years.
const maxIndex = 1 << 30

// fileMode lets everyone read: log shippers run as other users. It is Nomad's mode.
const fileMode = 0o644

// Config configures a Rotator. All fields are required.
type Config struct {
	Dir      string // the allocation's log directory, which exists
	Name     string // TASK.stdout or TASK.stderr
	MaxFiles int    // kept, the one being written included; at least 1
	MaxBytes int64  // of each file; at least 1
	Logger   *slog.Logger
}

var _ Sink = (*Rotator)(nil)

// Rotator writes one stream. All methods are safe for concurrent use.
type Rotator struct {
	cfg Config

	mu        sync.Mutex // guards all below; held during file I/O, which is what it orders
	dir       *os.File   // nil when closed
	file      *os.File   // nil while none could be opened
	indexes   []int      // of the files that exist, ascending; the last is the one being written
	size      int64      // of file
	lineStart bool       // file is empty or ends with a newline
	lost      int64      // bytes lost since the last note in the file
	reason    error      // why the first of them were lost
	times     *times     // of file
}

// Open opens the newest file of the stream for appending, or makes NAME.0. An error means that the directory or the
// settings are wrong. A file that can't be opened, on a full disk, is no error: every write tries again, and the loss
// is counted.
func Open(cfg Config) (*Rotator, error) {
	if cfg.MaxFiles < 1 || cfg.MaxBytes < 1 {
		return nil, fmt.Errorf("open log %q: max_files is %d and the size of a file is %d bytes: both must be at least 1",
			cfg.Name, cfg.MaxFiles, cfg.MaxBytes)
	}
	if cfg.Name == "" || strings.ContainsAny(cfg.Name, "/\x00") {
		return nil, fmt.Errorf("open log %q: a task's name must not be empty or hold a slash", cfg.Name)
	}
	dir, err := os.OpenFile(cfg.Dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open log directory: %w", err)
	}
	r := &Rotator{cfg: cfg, dir: dir}
	if r.indexes, err = r.list(); err != nil {
		dir.Close()
		return nil, fmt.Errorf("list log directory: %w", err)
	}
	_ = r.openNewestLocked() // tried again by the first write, which counts what is lost
	r.pruneLocked()
	return r, nil
}

// list finds the numbers of the stream's files, ascending.
func (r *Rotator) list() ([]int, error) {
	names, err := r.dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var indexes []int
	for _, name := range names {
		if n, ok := Index(r.cfg.Name, name); ok {
			indexes = append(indexes, n)
		}
	}
	slices.Sort(indexes)
	return indexes, nil
}

// Index returns the number of a stream's file, if that is the file's name.
func Index(stream, file string) (n int, ok bool) {
	digits, ok := strings.CutPrefix(file, stream+".")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0 && n <= maxIndex && digits == strconv.Itoa(n)
}

// Write writes p, or as much of it as the disk takes; the rest is counted as lost. It never fails and never waits for
// space.
func (r *Rotator) Write(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.dir == nil:
	case r.noteLocked():
		r.appendLocked(p)
	default:
		r.loseLocked(len(p), r.reason)
	}
}

// Behind reports whether output was lost that the file does not mention yet.
func (r *Rotator) Behind() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost > 0
}

// Retry writes a note of lost output into the file, if there is any and the disk has space again.
func (r *Rotator) Retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir != nil {
		r.noteLocked()
	}
}

// Close closes the files. It is safe to call twice; a Write after it is dropped.
func (r *Rotator) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir == nil {
		return nil
	}
	r.noteLocked()
	err := r.dir.Close()
	r.dir = nil
	if r.file != nil {
		err = r.file.Close()
		r.times.close()
		r.file = nil
	}
	return err
}

// appendLocked writes p over as many files as it takes.
func (r *Rotator) appendLocked(p []byte) {
	for len(p) > 0 {
		n := 0
		if r.file != nil {
			n = room(p, r.size, r.cfg.MaxBytes, r.lineStart)
		}
		if n == 0 {
			if err := r.rotateLocked(); err != nil {
				r.loseLocked(len(p), err)
				return
			}
			continue
		}
		r.times.note(r.size, time.Now())
		n, err := r.file.Write(p[:n])
		if n > 0 {
			r.size += int64(n)
			r.lineStart = p[n-1] == '\n'
			p = p[n:]
		}
		if err != nil {
			r.loseLocked(len(p), err)
			return
		}
	}
}

// room returns how many bytes of p fit into a file of the given size and limit; with 0, the next file must begin. It is
// never 0 for an empty file. Lines that end within lineZone of the limit stay whole: if p would cross the limit, or
// leave an unfinished line inside the zone, it is cut after its last newline that fits.
func room(p []byte, size, limit int64, lineStart bool) int {
	left := limit - size
	if left <= 0 {
		return 0
	}
	n := int64(len(p))
	inZone := size+n > limit-lineZone
	if n <= left && (!inZone || p[n-1] == '\n') {
		return int(n)
	}
	fits := p[:min(n, left)]
	if i := bytes.LastIndexByte(fits, '\n'); i >= 0 {
		return i + 1 // the rest is looked at again, as the beginning of a line
	}
	if lineStart && size > 0 && size >= limit-lineZone {
		return 0
	}
	return len(fits)
}

// noteLocked writes a note about lost output into the file, if any is lost. It reports whether no note is left to
// write.
func (r *Rotator) noteLocked() bool {
	if r.lost == 0 {
		return true
	}
	text := fmt.Sprintf("[taskapi: %d bytes of output are lost here: %v]\n", r.lost, r.reason)
	full := r.size > 0 && r.size+int64(len(text)) >= r.cfg.MaxBytes
	if (r.file == nil || full) && r.rotateLocked() != nil {
		return false
	}
	if !r.lineStart {
		text = "\n" + text
	}
	r.times.note(r.size, time.Now())
	n, err := r.file.WriteString(text)
	r.size += int64(n)
	if err != nil {
		return false
	}
	r.lineStart = true
	r.cfg.Logger.Warn("task output is written again", "log", r.cfg.Name, "lost_bytes", r.lost)
	r.lost, r.reason = 0, nil
	return true
}

// loseLocked counts n lost bytes.
func (r *Rotator) loseLocked(n int, err error) {
	if n > 0 && r.lost == 0 {
		r.reason = err
		for inner := err; inner != nil; inner = errors.Unwrap(inner) {
			r.reason = inner // the innermost error is enough in a log file
		}
		r.cfg.Logger.Warn("task output is being lost", "log", filepath.Join(r.cfg.Dir, r.cfg.Name), "error", r.reason)
	}
	r.lost += int64(n)
}

package logs

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// skips limits how many numbers are passed over because other files have them.
const skips = 16

// errForeign means that a name in the log directory is not a plain file, but a link, a directory or a pipe that a task
// has put there.
var errForeign = errors.New("not a plain file")

// openNewestLocked opens the file with the highest number, or the first of all.
func (r *Rotator) openNewestLocked() error {
	if len(r.indexes) == 0 {
		return r.openNextLocked(0)
	}
	newest := r.indexes[len(r.indexes)-1]
	file, size, err := r.openFile(newest, 0)
	if errors.Is(err, errForeign) {
		return r.openNextLocked(newest + 1)
	}
	if err != nil {
		return err
	}
	r.useLocked(file, size)
	return nil
}

// rotateLocked opens the next number and removes the oldest file. When it fails, the current file stays in use.
func (r *Rotator) rotateLocked() error {
	next := 0
	if len(r.indexes) > 0 {
		next = r.indexes[len(r.indexes)-1] + 1
	}
	err := r.openNextLocked(next)
	noSpace := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if noSpace && len(r.indexes) >= r.cfg.MaxFiles && len(r.indexes) > 1 {
		// The oldest file is removed in any case; removing it first may free the space.
		r.removeLocked(r.indexes[0])
		r.indexes = r.indexes[1:]
		err = r.openNextLocked(next)
	}
	if err != nil {
		return err
	}
	r.pruneLocked()
	return nil
}

// openNextLocked makes a new file with the number given or, if that name is taken, one of the next.
func (r *Rotator) openNextLocked(index int) error {
	for try := 0; ; try++ {
		file, size, err := r.openFile(index, unix.O_EXCL)
		if err == nil {
			r.indexes = append(r.indexes, index)
			r.useLocked(file, size)
			return nil
		}
		if !errors.Is(err, unix.EEXIST) || try == skips {
			return err
		}
		index++
	}
}

// useLocked makes file the one being written.
func (r *Rotator) useLocked(file *os.File, size int64) {
	if r.file != nil {
		r.file.Close()
		r.times.close()
	}
	r.file, r.size, r.lineStart, r.times = file, size, true, openTimes(r.dir, file.Name(), size)
	last := make([]byte, 1)
	if size > 0 {
		_, err := file.ReadAt(last, size-1)
		r.lineStart = err == nil && last[0] == '\n'
	}
}

// pruneLocked removes the oldest files so that MaxFiles remain.
func (r *Rotator) pruneLocked() {
	over := len(r.indexes) - r.cfg.MaxFiles
	if over <= 0 {
		return
	}
	for _, index := range r.indexes[:over] {
		r.removeLocked(index)
	}
	r.indexes = slices.Clone(r.indexes[over:])
}

func (r *Rotator) removeLocked(index int) {
	err := unix.Unlinkat(int(r.dir.Fd()), r.fileName(index), 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		r.cfg.Logger.Warn("old log file can't be removed", "log", r.fileName(index), "error", err)
		return
	}
	if err := removeTimes(r.dir, r.fileName(index)); err != nil {
		r.cfg.Logger.Warn("old log file can't be removed", "log", r.fileName(index), "error", err)
	}
}

func (r *Rotator) fileName(index int) string { return fmt.Sprintf("%s.%d", r.cfg.Name, index) }

// openFile opens a log file for appending and returns its size. Tasks may be able to write into the log directory, so
// openFile follows no link, and refuses a file that has a second name elsewhere. It opens the file for reading, too, so
// that it does not block on a pipe.
func (r *Rotator) openFile(index, flags int) (*os.File, int64, error) {
	name := r.fileName(index)
	flags |= unix.O_RDWR | unix.O_CREAT | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(r.dir.Fd()), name, flags, fileMode)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
			err = errForeign
		}
		return nil, 0, fmt.Errorf("open log file %q: %w", name, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1) {
		err = errForeign
	}
	if err == nil && st.Mode&0o777 != fileMode && st.Uid == uint32(os.Geteuid()) {
		err = unix.Fchmod(fd, fileMode) // the umask may have taken bits away
	}
	if err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("open log file %q: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), st.Size, nil
}

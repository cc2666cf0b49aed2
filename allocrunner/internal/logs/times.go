package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The times of a log file are in a file of their own beside it, so that the log stays as the task wrote it. That file
// is a list of records, each two signed varints: the offset in the log, and the time in milliseconds since 1970, both
// less those of the record before. What the log has from an offset on was read from the task at that time, until the
// next record's. A millisecond has at most one record, so a line costs about three bytes, a busy stream 3 KB a second.
// A task can write there, too, so a reader stops at the first record that nobody has written here.

// maxTimes is how long such a file gets: what a stream writes in six hours if it writes something every millisecond.
const maxTimes = 64 << 20

// lastMilli ends the year 9999: JSON has no later times.
const lastMilli = 253402300799999

// TimesName returns the name of the file with the times of a log file.
func TimesName(file string) string { return "." + file + ".times" }

// stamp is a record.
type stamp struct{ offset, milli int64 }

// times writes the times of one log file. Without a file it writes none, so that a full disk costs no output.
type times struct {
	file *os.File
	last stamp
	size int64
}

// openTimes opens the times of a log file of a size in an open directory. They are new when the log is empty.
func openTimes(dir *os.File, file string, size int64) *times {
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat(int(dir.Fd()), TimesName(file), flags, fileMode)
	if err != nil {
		return &times{}
	}
	t := &times{file: os.NewFile(uintptr(fd), file)}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		t.close()
		return t
	}
	if size > 0 {
		read := NewTimes(t.file)
		for read.next() {
		}
		if read.ahead.offset <= size {
			t.last, t.size = read.ahead, read.whole
		}
	}
	if t.file.Truncate(t.size) != nil { // the rest is half a record
		t.close()
	}
	return t
}

// note records that the log's bytes from an offset on were read now.
func (t *times) note(offset int64, now time.Time) {
	s := stamp{offset, now.UnixMilli()}
	if t.file == nil || s.milli == t.last.milli || t.size >= maxTimes {
		return
	}
	record := binary.AppendVarint(nil, s.offset-t.last.offset)
	record = binary.AppendVarint(record, s.milli-t.last.milli)
	if n, err := t.file.WriteAt(record, t.size); err != nil {
		if n > 0 && t.file.Truncate(t.size) != nil {
			t.close()
		}
		return
	}
	t.last, t.size = s, t.size+int64(len(record))
}

func (t *times) close() {
	if t.file != nil {
		t.file.Close()
		t.file = nil
	}
}

// Times reads the times of a log file, also while they are written.
type Times struct {
	file  io.ReaderAt
	now   stamp // of the offset that was asked for last
	ahead stamp // the record after it, or the same
	whole int64 // bytes of the file in records up to ahead
	data  []byte
	space [4096]byte
}

// NewTimes returns a reader of a file's records.
func NewTimes(file io.ReaderAt) *Times { return &Times{file: file} }

// At returns when the output at an offset of the log was read from the task. Offsets must rise from call to call. It
// returns false when the time is unknown.
func (t *Times) At(offset int64) (time.Time, bool) {
	for t.ahead.offset <= offset || t.whole == 0 {
		t.now = t.ahead
		if !t.next() {
			break
		}
	}
	return time.UnixMilli(t.now.milli), t.now.milli != 0 && t.now.offset <= offset
}

// next goes on to the next record. It returns false when there is no whole one.
func (t *Times) next() bool {
	if t.whole >= maxTimes {
		return false
	}
	s, n := t.decode()
	if n == 0 {
		read, err := t.file.ReadAt(t.space[:], t.whole)
		if err != nil && !errors.Is(err, io.EOF) {
			return false
		}
		t.data = t.space[:read]
		if s, n = t.decode(); n == 0 {
			return false
		}
	}
	t.ahead, t.data, t.whole = s, t.data[n:], t.whole+int64(n)
	return true
}

// decode returns the first record of the data and its length; 0 without a whole one that may have been written here.
// So the zeros of a file with a hole have no record, however long the file is.
func (t *Times) decode() (s stamp, length int) {
	offset, n := binary.Varint(t.data)
	if n <= 0 {
		return stamp{}, 0
	}
	milli, m := binary.Varint(t.data[n:])
	if m <= 0 || offset < 0 || milli == 0 {
		return stamp{}, 0
	}
	s = stamp{t.ahead.offset + offset, t.ahead.milli + milli}
	if s.offset < 0 || s.milli < 0 || s.milli > lastMilli {
		return stamp{}, 0
	}
	return s, n + m
}

// removeTimes removes the times of a log file that has been removed.
func removeTimes(dir *os.File, file string) error {
	err := unix.Unlinkat(int(dir.Fd()), TimesName(file), 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("times of %q: %w", file, err)
	}
	return nil
}

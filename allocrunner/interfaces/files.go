package interfaces

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// The reasons why a file of an allocation can't be read. A *FileError wraps one of them, or an error of the file
// system.
var (
	// ErrPathEscapes: the path, or a link on its way, leads out of the allocation directory.
	ErrPathEscapes = errors.New("path escapes the allocation directory")
	// ErrSecretFile and ErrPrivateFile: it is in a task's secrets or private directory, which nobody reads through the
	// API.
	ErrSecretFile  = errors.New("reading secret file prohibited")
	ErrPrivateFile = errors.New("reading private file prohibited")
	// ErrNotDirectory, ErrIsDirectory and ErrNotRegular: the file is of another kind than the requested one. Pipes,
	// sockets and devices are not opened.
	ErrNotDirectory = errors.New("not a directory")
	ErrIsDirectory  = errors.New("is a directory")
	ErrNotRegular   = errors.New("not a regular file")
	// ErrTooDeep and ErrTooManyEntries: the path or the directory exceeds a bound.
	ErrTooDeep        = errors.New("too many directories or links on the way")
	ErrTooManyEntries = errors.New("too many entries to list")
	// ErrNoLogs: the task has no log files of the type.
	ErrNoLogs = errors.New("no log files")
)

// FileError is an error about a file of an allocation.
type FileError struct {
	Path string // as it was asked for
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

// Reader is the user in whose name files are read.
type Reader struct{ UID, GID uint32 }

// Files are the files that the tasks of an allocation share, and those of each task except its secrets and private
// directories. Paths are relative to the allocation directory, with or without a slash in front. Links are followed as
// long as they stay within. Errors: *FileError.
type Files interface {
	// List returns the entries of a directory, sorted by name, without following links among them. It returns
	// ErrTooManyEntries if they take more than most bytes, in memory or as JSON, where some characters take six.
	List(path string, most int) ([]*api.AllocFileInfo, error)
	// Stat returns what a path leads to.
	Stat(path string) (*api.AllocFileInfo, error)
	// Open returns the content of a regular file.
	Open(path string, span Span) (Frames, error)
	// Logs returns the output of a task over all of its log files.
	Logs(task, kind string, span Span) (Frames, error)
}

// LogClock is implemented by Files that know when a task has written its output.
type LogClock interface {
	// LogTimes returns the times of a log file, which is named as frames name it. It returns nil when there are none.
	LogTimes(file string) LogTimes
}

// LogTimes are the times of one log file, also of one that grows.
type LogTimes interface {
	// At returns when the output at an offset of the file was read from the task, to a millisecond. It returns false when
	// that is unknown. Offsets must rise from call to call.
	At(offset int64) (time.Time, bool)
	Close() error
}

// Span is the part of a file to read.
type Span struct {
	Offset  int64 // bytes, from the beginning or back from the end; never negative
	FromEnd bool  // of logs, with Offset 0: from the beginning of the latest file, as in Nomad
	Limit   int64 // bytes; 0 for no limit. Not of logs

	// File is the log file to begin in, as frames name it, and Offset is in that file. With both, a reader continues
	// where another one ended. If the file is gone, reading begins with the next existing file. Only for logs.
	File string

	// Follow waits for more at the end, until the file is deleted or the reader has enough.
	Follow bool
	// Await waits for log files where there are none yet.
	Await bool

	// Large makes frames of 256 KiB at most; others have 64 KiB.
	Large bool
}

// Frames are a file's content piece by piece. Each frame has its File, its Data, and the Offset in File after the data.
// FileEvent says that the file was truncated, and is read again from its beginning, or that it was deleted, which ends
// a file that is followed.
type Frames interface {
	// Next returns the next frame, which is valid until the next call. It waits only if there is no data: even after
	// ctx has ended, it returns data that is there. Errors: io.EOF at the end, ctx's error, after which Next may be
	// called again, or that of the file system.
	Next(ctx context.Context) (*api.StreamFrame, error)
	Close() error
}

// The events of frames, in Nomad's words.
const (
	FileTruncated = "file truncated"
	FileDeleted   = "file deleted"
)

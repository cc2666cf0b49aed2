package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// maxFileBytes bounds a file of faults. It is far more than MaxFaults need.
const maxFileBytes = 1 << 20

type entry struct {
	Fault
	Delay      duration `json:"delay"`
	RetryAfter duration `json:"retry_after"`
}

// duration is a time.Duration that is written as "1.5s".
type duration time.Duration

func (d *duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf(`a duration is a string with its unit, such as "2s", not %s`, text)
	}
	parsed, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`a duration is a number with its unit, such as "2s", not %q`, s)
	}
	*d = duration(parsed)
	return nil
}

// Parse reads faults from JSON: {"faults": [{"path": "/v1/allocations", "times": 2, "status": 429, "retry_after":
// "1s"}]}. The error is ErrFault, with what is wrong and in which fault.
func Parse(src []byte) ([]Fault, error) {
	if len(src) > maxFileBytes {
		return nil, fmt.Errorf("%w: %d bytes; at most %d are read", ErrFault, len(src), maxFileBytes)
	}
	var document struct {
		Faults []json.RawMessage `json:"faults"`
	}
	err := strictly(src, &document)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrFault, err)
	case document.Faults == nil:
		return nil, fmt.Errorf(`%w: no "faults"; {"faults": []} is a file without any`, ErrFault)
	case len(document.Faults) > MaxFaults:
		return nil, fmt.Errorf("%w: %d faults; at most %d", ErrFault, len(document.Faults), MaxFaults)
	}
	var faults []Fault
	for i, raw := range document.Faults {
		var e entry
		if err := strictly(raw, &e); err != nil {
			return nil, fmt.Errorf("fault %d: %w: %w", i+1, ErrFault, err)
		}
		e.Fault.Delay, e.Fault.RetryAfter = time.Duration(e.Delay), time.Duration(e.RetryAfter)
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("fault %d: %w", i+1, err)
		}
		faults = append(faults, e.Fault)
	}
	return faults, nil
}

// strictly decodes one JSON value without unknown names. The error of a syntax mistake has its line.
func strictly(src []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(src))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			return errors.New("something follows the JSON value")
		}
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the file is empty")
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		wrong.Field = strings.TrimPrefix(wrong.Field, "Fault.") // of entry
		return errors.New(apierror.WrongJSON(wrong, `{"faults": [{"path": "/v1/allocations", "status": 503}]}`))
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("line %d: %w", 1+bytes.Count(src[:min(int(syntax.Offset), len(src))], []byte("\n")), err)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// File is the faults of a file, which may be rewritten at any time: the next request meets what it says then, from its
// beginning. So a test in any language writes the file before it sends what is to fail.
type File struct {
	path   string
	logger *slog.Logger

	mu   sync.Mutex // guards the fields below
	seen os.FileInfo
	src  []byte
	set  *Set
	err  error // of the file as it is
}

// OpenFile reads a file of faults. Errors: ErrFault, the file's.
func OpenFile(path string, logger *slog.Logger) (*File, error) {
	f := &File{path: path, logger: logger, set: new(Set)}
	if _, err := f.refresh(); err != nil {
		return nil, errors.Unwrap(err) // the caller names the file
	}
	return f, nil
}

// Next returns what answers a request, as Set.Next does. While the file can't be read, or says what can't be, every
// request is a 500 that says so: a test whose faults are forgotten would pass.
func (f *File) Next(r *http.Request, owner auth.Owner) (status int, answer http.Handler) {
	set, err := f.refresh()
	if err != nil {
		broken := Fault{Status: http.StatusInternalServerError, Body: err.Error()}
		return broken.Status, http.HandlerFunc(broken.write)
	}
	return set.Next(r, owner)
}

// Close ends the requests that hang, and all faults.
func (f *File) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set.Clear()
}

// refresh reads the file, and starts over if it differs from the last time: by its content, too, since two versions may
// have been written at one time of the file system's clock.
func (f *File) refresh() (*Set, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, src, err := read(f.path)
	if err == nil && f.seen != nil && os.SameFile(info, f.seen) && info.ModTime().Equal(f.seen.ModTime()) &&
		bytes.Equal(src, f.src) {
		return f.set, f.err
	}
	f.seen, f.src = info, src
	var faults []Fault
	if err == nil {
		faults, err = Parse(src)
	}
	f.set.Clear()
	if err == nil {
		err = f.set.Add(faults...)
	}
	if err == nil {
		f.err = nil
		return f.set, nil
	}
	err = fmt.Errorf("faults of %s: %w", f.path, err)
	if f.err == nil || f.err.Error() != err.Error() {
		f.logger.Error("every request fails: the file of faults can't be used", "error", err)
	}
	f.err = err
	return nil, err
}

func read(path string) (os.FileInfo, []byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo must not block every request
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%w: %s is no regular file", ErrFault, path)
	}
	src, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	return info, src, err
}

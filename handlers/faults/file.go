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
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskapi/auth"
)

// maxFileBytes bounds a file of faults: far more than MaxFaults need.
const maxFileBytes = 1 << 20

// document is a file of faults.
type document struct {
	Faults []json.RawMessage `json:"faults"`
}

// entry is a Fault as it is in a file.
type entry struct {
	Task       string   `json:"task"`
	Method     string   `json:"method"`
	Path       string   `json:"path"`
	Skip       int      `json:"skip"`
	Times      int      `json:"times"`
	Always     bool     `json:"always"`
	Delay      duration `json:"delay"`
	Status     int      `json:"status"`
	RetryAfter duration `json:"retry_after"`
	Body       string   `json:"body"`
	Hang       bool     `json:"hang"`
	Cut        bool     `json:"cut"`
	Tear       bool     `json:"tear"`
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
// "1s"}]}, with the names of Fault's fields in lower case. Errors: ErrFault, with what is wrong and in which fault.
func Parse(src []byte) ([]Fault, error) {
	if len(src) > maxFileBytes {
		return nil, fmt.Errorf("%w: %d bytes; at most %d are read", ErrFault, len(src), maxFileBytes)
	}
	var doc document
	if err := strictly(src, &doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFault, err)
	}
	if doc.Faults == nil {
		return nil, fmt.Errorf(`%w: no "faults"; {"faults": []} is a file without any`, ErrFault)
	}
	if len(doc.Faults) > MaxFaults {
		return nil, fmt.Errorf("%w: %d faults; at most %d", ErrFault, len(doc.Faults), MaxFaults)
	}
	var faults []Fault
	for i, raw := range doc.Faults {
		var e entry
		err := strictly(raw, &e)
		f := Fault{
			Task: e.Task, Method: e.Method, Path: e.Path, Skip: e.Skip, Times: e.Times, Always: e.Always, Delay: time.Duration(e.Delay),
			Status: e.Status, RetryAfter: time.Duration(e.RetryAfter), Body: e.Body, Hang: e.Hang, Cut: e.Cut, Tear: e.Tear,
		}
		if err == nil {
			err = f.check()
		}
		switch {
		case errors.Is(err, ErrFault):
			return nil, fmt.Errorf("fault %d: %w", i+1, err)
		case err != nil:
			return nil, fmt.Errorf("fault %d: %w: %w", i+1, ErrFault, err)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

// strictly decodes one JSON value, whose names are all known; a mistake is said with its line.
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
		if wrong.Field == "" {
			return fmt.Errorf("%s is no object: give {\"faults\": [{\"path\": \"/v1/allocations\", \"status\": 503}]}", article(wrong.Value))
		}
		return fmt.Errorf("%q is %s: give %s", wrong.Field, article(wrong.Value), article(kindOf(wrong.Type)))
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("line %d: %w", 1+bytes.Count(src[:min(int(syntax.Offset), len(src))], []byte("\n")), err)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// kindOf returns JSON's word for what a Go type is decoded from.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int:
		return "whole number"
	case reflect.String:
		return "string"
	case reflect.Slice:
		return "array"
	default:
		return "object"
	}
}

// article returns a word with its article.
func article(word string) string {
	if strings.ContainsAny(word[:1], "aeiou") {
		return "an " + word
	}
	return "a " + word
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

// Close ends the requests that hang. Nothing fails any more.
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
	if err == nil && f.seen != nil && os.SameFile(info, f.seen) && info.ModTime().Equal(f.seen.ModTime()) && bytes.Equal(src, f.src) {
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
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo in its place must not hold every request
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

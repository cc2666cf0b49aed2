package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// Filer is an allocation with files.
type Filer interface {
	// Files returns them as the caller may see them: the operator for nil, else a task's process.
	Files(caller *auth.Peer) Files
}

// Files are what tasks share, and what each of them has but for its secrets. Errors: NoFile, PathEscapes, SecretFile, PrivateFile,
// FilePermission, Invalid.
type Files interface {
	// List returns the entries of a directory. Errors: TooManyFiles when they take more than most bytes, in memory or
	// as JSON.
	List(path string, most int) ([]*api.AllocFileInfo, error)
	Stat(path string) (*api.AllocFileInfo, error)
	Open(path string, span Span) (Frames, error)
	// Logs returns a task's stdout or stderr. Errors: NoLogs, too.
	Logs(task, kind string, span Span) (Frames, error)
}

// Span is the part of a file to read. With Follow it has no end.
type Span struct {
	Offset  int64 // bytes, from the beginning or back from the end
	FromEnd bool
	Limit   int64 // bytes; 0 for none
	Follow  bool
}

// Frames are a file's content piece by piece.
type Frames interface {
	// Next returns the next frame, which is good until the next call, and waits where there is none. An ended ctx ends the wait alone.
	// Errors: io.EOF, ctx's, after which it may be called again, or a fault.
	Next(ctx context.Context) (*api.StreamFrame, error)
	Close() error
}

// files returns the files of the allocation that the path names, as the caller may see them.
func files(r *request) (Files, error) {
	alloc, err := resource[Filer](r, apierror.NoAllocOnClient)
	if err != nil {
		return nil, err
	}
	if r.Principal.Operator() {
		return alloc.Files(nil), nil
	}
	caller := r.Peer // a copy: r is used again
	owner := r.server.owner
	if caller.UID != owner.UID { // root, or a proxy of root's, gives nobody its rights
		caller.UID, caller.GID = owner.UID, owner.GID
	}
	return alloc.Files(&caller), nil
}

// listFiles answers GET /v1/client/fs/ls/:id; without a path that of the allocation.
func (a *API) listFiles(ctx context.Context, r *request) (answer, error) {
	found, query, err := filesAndQuery(r)
	if err != nil {
		return answer{}, err
	}
	list, err := found.List(query.Get("path"), shortBytes)
	if known, ok := errors.AsType[*apierror.Error](err); ok && known.Kind == apierror.TooManyFiles {
		if _, err := r.reserve(ctx, 2*maxList); err != nil {
			return answer{}, err
		}
		r.server.pacer.answered(&r.server.bucket, maxList) // also if it is too long after all
		list, err = found.List(query.Get("path"), maxList)
	}
	if err != nil {
		return answer{}, err
	}
	encoded := []byte{'['} // piece by piece: the whole at once takes three times the memory
	for i, f := range list {
		if i > 0 {
			encoded = append(encoded, ',')
		}
		one, err := json.Marshal(wireFileInfo(*f))
		if err != nil {
			return answer{}, err
		}
		encoded = append(encoded, one...)
	}
	return answer{body: newBody(append(encoded, ']'), jsonType)}, nil
}

// maxList is how much of a directory is listed, in the bytes of Files.List: some 20,000 files.
const maxList = 4 << 20

// statFile answers GET /v1/client/fs/stat/:id.
func (a *API) statFile(_ context.Context, r *request) (answer, error) {
	found, path, _, err := fileAndQuery(r)
	if err != nil {
		return answer{}, err
	}
	info, err := found.Stat(path)
	if err != nil {
		return answer{}, err
	}
	return respond(wireFileInfo(*info))
}

// wireFileInfo is api.AllocFileInfo as Nomad sends it: a list has no content types.
type wireFileInfo struct {
	Name        string
	IsDir       bool
	Size        int64
	FileMode    string
	ModTime     time.Time
	ContentType string `json:",omitempty"`
}

// catFile answers GET /v1/client/fs/cat/:id.
func (a *API) catFile(ctx context.Context, r *request) (answer, error) {
	return rawFile(ctx, r, func(url.Values) (Span, error) { return Span{}, nil })
}

// readFileAt answers GET /v1/client/fs/readat/:id. A limit of 0 or less is none, as in Nomad; an offset beyond the end is nothing.
func (a *API) readFileAt(ctx context.Context, r *request) (answer, error) {
	return rawFile(ctx, r, func(query url.Values) (span Span, err error) {
		if !query.Has("offset") {
			return span, invalid("must provide an offset")
		}
		if span.Offset, err = offsetOf(query); err != nil || query.Get("limit") == "" {
			return span, err
		}
		limit, err := strconv.ParseInt(query.Get("limit"), 10, 64)
		if err != nil {
			return span, invalid("limit must be a number of bytes, not %s", clip(query.Get("limit")))
		}
		span.Limit = max(limit, 0)
		return span, nil
	})
}

func filesAndQuery(r *request) (Files, url.Values, error) {
	found, err := files(r)
	if err != nil {
		return nil, nil, err
	}
	query, err := r.values()
	return found, query, err
}

// fileAndQuery is filesAndQuery with the path that the query must have.
func fileAndQuery(r *request) (found Files, path string, query url.Values, err error) {
	if found, query, err = filesAndQuery(r); err != nil {
		return nil, "", nil, err
	}
	path, err = required(query, "path", "must provide a file name")
	return found, path, query, err
}

// required returns a parameter that must not be empty.
func required(query url.Values, name, missing string) (string, error) {
	value := query.Get(name)
	if value == "" {
		return "", invalid("%s", missing)
	}
	return value, nil
}

// offsetOf returns the offset, 0 without one.
func offsetOf(query url.Values) (int64, error) {
	text := query.Get("offset")
	if text == "" {
		return 0, nil
	}
	offset, err := strconv.ParseInt(text, 10, 64)
	if err != nil || offset < 0 {
		return 0, invalid("offset must be a number of bytes, 0 or more, not %s", clip(text))
	}
	return offset, nil
}

// rawFile answers with the bytes of a file. The first frame says what they are to a browser: text, or nothing that it could show or run.
func rawFile(ctx context.Context, r *request, spanOf func(url.Values) (Span, error)) (answer, error) {
	found, path, query, err := fileAndQuery(r)
	if err != nil {
		return answer{}, err
	}
	span, err := spanOf(query)
	if err != nil {
		return answer{}, err
	}
	frames, err := found.Open(path, span)
	if err != nil {
		return answer{}, err
	}
	first, err := frames.Next(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		_ = frames.Close() // what it says is nothing beside err
		return answer{}, err
	}
	contentType := plainType
	if first != nil && !strings.HasPrefix(http.DetectContentType(first.Data), "text/") {
		contentType = binaryType
	}
	s := &frameWriter{frames: frames, plain: true, first: first}
	return answer{contentType: contentType, noSniff: true, stream: s.run, release: s.close}, nil
}

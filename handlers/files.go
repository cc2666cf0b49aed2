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

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
)

// Filer is an allocation with files, as interfaces.AllocRunner has them.
type Filer interface {
	Files(reader *interfaces.Reader) interfaces.Files
}

// files returns the files of the allocation that the path names, as the caller may see them: what a task reads over the API is no more than its
// process could open itself.
func files(r *request) (interfaces.Files, error) {
	alloc, err := resource[Filer](r, apierror.NoAllocOnClient)
	if err != nil {
		return nil, err
	}
	if r.Principal.Operator() {
		return alloc.Files(nil), nil
	}
	reader := interfaces.Reader{UID: r.Peer.UID, GID: r.Peer.GID}
	if owner := r.server.owner; reader.UID != owner.UID { // root, or a proxy of root's, gives nobody its rights
		reader = interfaces.Reader{UID: owner.UID, GID: owner.GID}
	}
	return alloc.Files(&reader), nil
}

// listFiles answers GET /v1/client/fs/ls/:id; without a path that of the allocation.
func (a *API) listFiles(ctx context.Context, r *request) (answer, error) {
	found, query, err := filesAndQuery(r)
	if err != nil {
		return answer{}, err
	}
	list, err := found.List(query.Get("path"), shortBytes)
	if errors.Is(err, interfaces.ErrTooManyEntries) {
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
	return rawFile(ctx, r, func(url.Values) (interfaces.Span, error) { return interfaces.Span{}, nil })
}

// readFileAt answers GET /v1/client/fs/readat/:id. A limit of 0 or less is none, as in Nomad; an offset beyond the end is nothing.
func (a *API) readFileAt(ctx context.Context, r *request) (answer, error) {
	return rawFile(ctx, r, func(query url.Values) (span interfaces.Span, err error) {
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

func filesAndQuery(r *request) (interfaces.Files, url.Values, error) {
	found, err := files(r)
	if err != nil {
		return nil, nil, err
	}
	query, err := r.values()
	return found, query, err
}

// fileAndQuery is filesAndQuery with the path that the query must have.
func fileAndQuery(r *request) (found interfaces.Files, path string, query url.Values, err error) {
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
func rawFile(ctx context.Context, r *request, spanOf func(url.Values) (interfaces.Span, error)) (answer, error) {
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

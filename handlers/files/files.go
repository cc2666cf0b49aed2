// Package files has the routes of an allocation's files and of its tasks' output, which list, describe, read and follow
// them.
package files

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
)

// Filer is an allocation with files, as interfaces.AllocRunner has them.
type Filer interface {
	route.Alloc
	Files(reader *interfaces.Reader) interfaces.Files
}

type handlers struct{ logger *slog.Logger }

// Routes returns the rows of files and logs. The logger gets files that can't be read to their end.
func Routes(logger *slog.Logger) []route.Route {
	h := &handlers{logger}
	const fs = "/v1/client/fs/"
	return []route.Route{
		route.Read(fs+"ls/{alloc}", auth.ReadFS, onFiles(list), "Lists a directory of an allocation."),
		route.Read(fs+"stat/{alloc}", auth.ReadFS, onFile(stat), "Describes a file of an allocation."),
		route.Read(fs+"cat/{alloc}", auth.ReadFS, h.raw(wholeFile), "Returns a file of an allocation.").Answering(route.Raw),
		route.Read(fs+"readat/{alloc}", auth.ReadFS, h.raw(partOf), "Returns a part of a file of an allocation.").
			Answering(route.Raw),
		route.Read(fs+"stream/{alloc}", auth.ReadFS, onFile(h.follow), "Follows a file of an allocation.").
			Flags("follow").Answering(route.Stream),
		route.Read(fs+"logs/{alloc}", auth.ReadLogs, onFiles(h.logs), "Returns or follows what a task prints.").
			Or(auth.ReadFS).
			Flags("follow", "plain").Answering(route.Stream),
	}
}

// onFiles returns a handler that gets the files of the allocation that the path names, as the caller may see them: a
// task reads over the API no more than its process could open itself.
func onFiles(
	handle func(ctx context.Context, r *route.Request, alloc Filer, found interfaces.Files) (route.Answer, error),
) route.Handler {
	return route.OnAlloc(apierror.NoAllocOnClient,
		func(ctx context.Context, r *route.Request, alloc Filer) (route.Answer, error) {
			if r.Principal.Operator() {
				return handle(ctx, r, alloc, alloc.Files(nil))
			}
			peer, owner := r.Peer(), r.Owner()
			reader := interfaces.Reader{UID: peer.UID, GID: peer.GID}
			if reader.UID != owner.UID { // root, or a proxy of root's, gives nobody its rights
				reader = interfaces.Reader{UID: owner.UID, GID: owner.GID}
			}
			return handle(ctx, r, alloc, alloc.Files(&reader))
		})
}

// onFile is onFiles with the path of the file that the query must name.
func onFile(
	handle func(ctx context.Context, r *route.Request, found interfaces.Files, path string) (route.Answer, error),
) route.Handler {
	return onFiles(func(ctx context.Context, r *route.Request, _ Filer, found interfaces.Files) (route.Answer, error) {
		path := r.Query().Get("path")
		if path == "" {
			return route.Answer{}, route.Invalid("must provide a file name")
		}
		return handle(ctx, r, found, path)
	})
}

// list answers GET /v1/client/fs/ls/:id; without a path that of the allocation.
func list(ctx context.Context, r *route.Request, _ Filer, found interfaces.Files) (route.Answer, error) {
	path := r.Query().Get("path")
	list, err := found.List(path, route.ShortBytes)
	if errors.Is(err, interfaces.ErrTooManyEntries) {
		if _, err := r.Reserve(ctx, 2*maxList); err != nil {
			return route.Answer{}, err
		}
		r.Sent(maxList) // also if it is too long after all
		list, err = found.List(path, maxList)
	}
	if err != nil {
		return route.Answer{}, err
	}
	encoded := []byte{'['} // piece by piece: the whole at once takes three times the memory
	for i, f := range list {
		if i > 0 {
			encoded = append(encoded, ',')
		}
		one, err := json.Marshal(wireFileInfo(*f))
		if err != nil {
			return route.Answer{}, err
		}
		encoded = append(encoded, one...)
	}
	return route.Answer{Body: route.NewBody(append(encoded, ']'), route.JSONType)}, nil
}

// maxList bounds the list of a directory, in the bytes of Files.List: some 20,000 files.
const maxList = 4 << 20

// stat answers GET /v1/client/fs/stat/:id.
func stat(_ context.Context, _ *route.Request, found interfaces.Files, path string) (route.Answer, error) {
	info, err := found.Stat(path)
	if err != nil {
		return route.Answer{}, err
	}
	return route.Respond(wireFileInfo(*info))
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

// partOf reads the offset and the limit of GET /v1/client/fs/readat/:id. A limit of 0 or less is none, as in Nomad; an
// offset beyond the end is nothing.
func partOf(query url.Values) (span interfaces.Span, err error) {
	if !query.Has("offset") {
		return span, route.Invalid("must provide an offset")
	}
	if span.Offset, err = offsetOf(query); err != nil || query.Get("limit") == "" {
		return span, err
	}
	limit, err := strconv.ParseInt(query.Get("limit"), 10, 64)
	if err != nil {
		return span, route.Invalid("limit must be a number of bytes, not %s", route.Clip(query.Get("limit")))
	}
	span.Limit = max(limit, 0)
	return span, nil
}

// wholeFile is for GET /v1/client/fs/cat/:id.
func wholeFile(url.Values) (interfaces.Span, error) { return interfaces.Span{}, nil }

// offsetOf returns the offset, 0 without one.
func offsetOf(query url.Values) (int64, error) {
	text := query.Get("offset")
	if text == "" {
		return 0, nil
	}
	offset, err := strconv.ParseInt(text, 10, 64)
	if err != nil || offset < 0 {
		return 0, route.Invalid("offset must be a number of bytes, 0 or more, not %s", route.Clip(text))
	}
	return offset, nil
}

// raw returns a handler that answers with the bytes of a part of a file. The content type follows from the first frame:
// text, or bytes that a browser neither shows nor runs.
func (h *handlers) raw(spanOf func(url.Values) (interfaces.Span, error)) route.Handler {
	return onFile(func(
		ctx context.Context, r *route.Request, found interfaces.Files, path string,
	) (route.Answer, error) {
		span, err := spanOf(r.Query())
		if err != nil {
			return route.Answer{}, err
		}
		span.Large = r.Principal.Operator()
		frames, err := found.Open(path, span)
		if err != nil {
			return route.Answer{}, err
		}
		first, err := frames.Next(ctx)
		if err != nil && !errors.Is(err, io.EOF) {
			_ = frames.Close() // err says more
			return route.Answer{}, err
		}
		result := h.stream(&frameWriter{frames: frames, plain: true, first: first})
		if first != nil && !strings.HasPrefix(http.DetectContentType(first.Data), "text/") {
			result.ContentType = route.BinaryType
		}
		return result, nil
	})
}

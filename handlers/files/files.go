// Package files has the routes of an allocation's files and of what its tasks print: listed, described, read, and
// followed while they grow.
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
	Files(reader *interfaces.Reader) interfaces.Files
}

// handlers answers the routes of files and logs.
type handlers struct{ logger *slog.Logger }

// Routes returns the rows of files and logs. The logger gets files that can't be read to their end.
func Routes(logger *slog.Logger) []route.Route {
	h := &handlers{logger}
	const fs = "/v1/client/fs/"
	return []route.Route{
		route.Read(fs+"ls/{alloc}", auth.ReadFS, h.list, "Lists a directory of an allocation."),
		route.Read(fs+"stat/{alloc}", auth.ReadFS, h.stat, "Describes a file of an allocation."),
		route.Read(fs+"cat/{alloc}", auth.ReadFS, h.cat, "Returns a file of an allocation.").Answering(route.Raw),
		route.Read(fs+"readat/{alloc}", auth.ReadFS, h.readAt, "Returns a part of a file of an allocation.").
			Answering(route.Raw),
		route.Read(fs+"stream/{alloc}", auth.ReadFS, h.follow, "Follows a file of an allocation.").
			Flags("follow").Answering(route.Stream),
		route.Read(fs+"logs/{alloc}", auth.ReadLogs, h.logs, "Returns or follows what a task prints.").Or(auth.ReadFS).
			Flags("follow", "plain").Answering(route.Stream),
	}
}

// files returns the files of the allocation that the path names, as the caller may see them: a task reads over the API
// no more than its process could open itself.
func files(r *route.Request) (interfaces.Files, error) {
	alloc, err := route.Resource[Filer](r, apierror.NoAllocOnClient)
	if err != nil {
		return nil, err
	}
	if r.Principal.Operator() {
		return alloc.Files(nil), nil
	}
	peer, owner := r.Peer(), r.Owner()
	reader := interfaces.Reader{UID: peer.UID, GID: peer.GID}
	if reader.UID != owner.UID { // root, or a proxy of root's, gives nobody its rights
		reader = interfaces.Reader{UID: owner.UID, GID: owner.GID}
	}
	return alloc.Files(&reader), nil
}

// list answers GET /v1/client/fs/ls/:id; without a path that of the allocation.
func (h *handlers) list(ctx context.Context, r *route.Request) (route.Answer, error) {
	found, err := files(r)
	if err != nil {
		return route.Answer{}, err
	}
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

// maxList is how much of a directory is listed, in the bytes of Files.List: some 20,000 files.
const maxList = 4 << 20

// stat answers GET /v1/client/fs/stat/:id.
func (h *handlers) stat(_ context.Context, r *route.Request) (route.Answer, error) {
	found, path, err := fileOf(r)
	if err != nil {
		return route.Answer{}, err
	}
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

// cat answers GET /v1/client/fs/cat/:id.
func (h *handlers) cat(ctx context.Context, r *route.Request) (route.Answer, error) {
	return h.raw(ctx, r, func(url.Values) (interfaces.Span, error) { return interfaces.Span{}, nil })
}

// readAt answers GET /v1/client/fs/readat/:id. A limit of 0 or less is none, as in Nomad; an offset beyond the end is
// nothing.
func (h *handlers) readAt(ctx context.Context, r *route.Request) (route.Answer, error) {
	return h.raw(ctx, r, func(query url.Values) (span interfaces.Span, err error) {
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
	})
}

// fileOf returns the files, and the path of the one that the query must name.
func fileOf(r *route.Request) (found interfaces.Files, path string, err error) {
	if found, err = files(r); err != nil {
		return nil, "", err
	}
	if path = r.Query().Get("path"); path == "" {
		return nil, "", route.Invalid("must provide a file name")
	}
	return found, path, nil
}

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

// raw answers with the bytes of a file. The content type follows from the first frame: text, or bytes that a browser
// neither shows nor runs.
func (h *handlers) raw(
	ctx context.Context, r *route.Request, spanOf func(url.Values) (interfaces.Span, error),
) (route.Answer, error) {
	found, path, err := fileOf(r)
	if err != nil {
		return route.Answer{}, err
	}
	span, err := spanOf(r.Query())
	if err != nil {
		return route.Answer{}, err
	}
	frames, err := found.Open(path, span)
	if err != nil {
		return route.Answer{}, err
	}
	first, err := frames.Next(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		_ = frames.Close() // err says more
		return route.Answer{}, err
	}
	contentType := route.PlainType
	if first != nil && !strings.HasPrefix(http.DetectContentType(first.Data), "text/") {
		contentType = route.BinaryType
	}
	s := &frameWriter{frames: frames, plain: true, first: first, logger: h.logger}
	return route.Answer{ContentType: contentType, NoSniff: true, Stream: s.run, Release: s.close}, nil
}

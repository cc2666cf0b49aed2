package files

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/transport"
)

// frameHeartbeat is Nomad's. A client can end the stream when the next frame comes.
const frameHeartbeat = time.Second

// drainFrames is how long a stream goes on sending when the server stops: a task that goes on printing has no last
// line.
const drainFrames = transport.DrainTimeout - time.Second/2

// follow answers GET /v1/client/fs/stream/:id: frames of the file, which is followed unless follow is false.
func (h *handlers) follow(
	_ context.Context, r *route.Request, found interfaces.Files, path string,
) (route.Answer, error) {
	span, err := spanOf(r, true)
	if err != nil {
		return route.Answer{}, err
	}
	frames, err := found.Open(path, span)
	if err != nil {
		return route.Answer{}, err
	}
	return h.stream(&frameWriter{frames: frames}), nil
}

// stream returns the answer of a stream of a file: text when it is plain, else JSON.
func (h *handlers) stream(s *frameWriter) route.Answer {
	s.logger = h.logger
	contentType := route.JSONType
	if s.plain {
		contentType = route.PlainType
	}
	return route.Answer{ContentType: contentType, NoSniff: true, Stream: s.run, Release: func() {
		_ = s.frames.Close() // it was only read
	}}
}

// spanOf reads follow, origin and offset.
func spanOf(r *route.Request, follow bool) (span interfaces.Span, err error) {
	query := r.Query()
	if span.Offset, err = offsetOf(query); err != nil {
		return span, err
	}
	if query.Get("follow") != "" {
		follow = r.Flag("follow", follow)
	}
	span.Follow = follow
	switch origin := query.Get("origin"); origin {
	case "", api.OriginStart:
	case api.OriginEnd:
		span.FromEnd = true
	default:
		return span, route.Invalid("origin must be start or end")
	}
	return span, nil
}

// logs answers GET /v1/client/fs/logs/:id: the output of a task over all of its log files, as frames or, with plain, as
// it is. When the task ends, a follow goes on, since the task may start again. It ends with the server, which ends with
// the allocation.
func (h *handlers) logs(
	_ context.Context, r *route.Request, alloc Filer, found interfaces.Files,
) (route.Answer, error) {
	task, kind := r.Query().Get("task"), r.Query().Get("type")
	if task == "" {
		return route.Answer{}, route.Invalid("must provide task name")
	}
	if kind != api.FSLogNameStdout && kind != api.FSLogNameStderr {
		return route.Answer{}, route.Invalid("must provide log type (stdout/stderr)")
	}
	plain := r.Query().Get("plain") != "" && r.Flag("plain", false)
	span, err := spanOf(r, false)
	if err != nil {
		return route.Answer{}, err
	}
	span.Large = plain && r.Principal.Operator() // tasks might open many streams, and not read them
	switch state := alloc.Snapshot().TaskStates[task]; {
	case state == nil:
		return route.Answer{}, route.Invalid("unknown task name %s", route.Clip(task))
	case state.StartedAt.IsZero():
		return route.Answer{}, apierror.New(apierror.TaskNotStarted, task)
	}
	frames, err := found.Logs(task, kind, span)
	if err != nil {
		return route.Answer{}, apierror.Reword(err, apierror.NoFile, apierror.NoLogs, task, kind)
	}
	return h.stream(&frameWriter{frames: frames, plain: plain}), nil
}

type frameWriter struct {
	frames interfaces.Frames
	plain  bool             // send the data alone
	first  *api.StreamFrame // has been read already
	logger *slog.Logger
}

// run sends frames until their end, or until the stream has to end. A plain stream that is cut short breaks off the
// connection, so that its client does not take it for whole; others say why.
func (s *frameWriter) run(ctx context.Context, out *route.StreamWriter) {
	if err := out.Flush(); err != nil { // the head: there may be nothing to send for a long time
		return
	}
	for {
		frame, err := s.next(ctx)
		switch {
		case err == nil:
			err = s.send(out, frame)
		case errors.Is(err, io.EOF):
			return
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			if err = nil; !s.plain {
				err = out.Heartbeat()
			}
		case errors.Is(context.Cause(ctx), route.ErrDraining):
			if err = s.drain(out); err == nil {
				return
			}
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		default: // the file can't be read on
			s.logger.Warn("a file could not be read to its end", "error", err)
		}
		if err != nil {
			s.breakOff(out, err)
			return
		}
	}
}

// next waits for the next frame until a heartbeat is due.
func (s *frameWriter) next(ctx context.Context) (*api.StreamFrame, error) {
	if first := s.first; first != nil {
		s.first = nil
		return first, nil
	}
	if ctx.Err() != nil { // there may be more without end
		return nil, ctx.Err()
	}
	wait, cancel := context.WithTimeout(ctx, frameHeartbeat)
	defer cancel()
	return s.frames.Next(wait)
}

// drain sends the remaining content when the server stops, since the last lines say how the task ended. Errors: those
// of out, errDraining when there was more.
func (s *frameWriter) drain(out *route.StreamWriter) error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for until := time.Now().Add(drainFrames); time.Now().Before(until); {
		frame, err := s.frames.Next(ended)
		if err != nil {
			return nil //nolint:nilerr // the end, for now or for good
		}
		if err := s.send(out, frame); err != nil {
			return err
		}
	}
	return route.ErrDraining
}

func (s *frameWriter) breakOff(out *route.StreamWriter, err error) {
	if s.plain {
		panic(http.ErrAbortHandler)
	}
	why := route.EndUnauthorized
	switch {
	case errors.Is(err, route.ErrDraining):
		why = route.EndDraining
	case !route.Denied(err):
		return
	}
	out.LastWords(why)
}

// send sends a frame. Errors: those of out.
func (s *frameWriter) send(out *route.StreamWriter, frame *api.StreamFrame) error {
	if s.plain {
		if len(frame.Data) == 0 {
			return nil
		}
		_, err := out.Write(frame.Data)
		return err
	}
	if line := 2*len(frame.Data) + route.ShortBytes/2; line > route.ShortBytes {
		giveBack, err := out.Reserve(line)
		if err != nil {
			return err
		}
		defer giveBack()
	}
	buf := frameBuffers.Get().(*[]byte)
	defer frameBuffers.Put(buf)
	*buf = appendFrame((*buf)[:0], frame)
	return out.Line(*buf)
}

// frameBuffers holds buffers (*[]byte) in which frames are encoded, so that a stream that waits has none.
var frameBuffers = sync.Pool{New: func() any { return new([]byte) }}

// appendFrame encodes a frame as encoding/json does, without a copy of its data.
func appendFrame(b []byte, f *api.StreamFrame) []byte {
	rest, _ := json.Marshal(struct { // text and numbers can always be encoded
		File, FileEvent string `json:",omitempty"`
		Offset          int64  `json:",omitempty"`
	}{f.File, f.FileEvent, f.Offset})
	if len(f.Data) == 0 {
		return append(b, rest...)
	}
	b = append(base64.StdEncoding.AppendEncode(append(b, `{"Data":"`...), f.Data), '"')
	if len(rest) > len("{}") {
		b = append(b, ',')
	}
	return append(b, rest[1:]...)
}

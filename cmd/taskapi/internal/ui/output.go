package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/linewriter"
)

const (
	tailBytes  = 16 << 10 // of all streams together, which are shown at first
	framePause = 200 * time.Millisecond
	fullFrame  = 32 << 10
	maxBehind  = 20 // full frames in a row after which a reader skips to the end: it can't keep up
)

var errBehind = errors.New("output is missing here: it came faster than it can be shown")

// logLine is a line of a task's output, without characters that steer a terminal.
type logLine struct {
	Task string `json:"t"`
	Err  bool   `json:"e"` // of standard error
	Line string `json:"l"`
}

// streamsOf returns the streams of the target's task, or of all tasks, and the part of each that is shown at first.
func streamsOf(t base.Target) ([]follow.TaskStream, interfaces.Span) {
	tasks := base.TaskNames(t.Alloc)
	if t.Task != "" {
		tasks = []string{t.Task}
	}
	all := follow.StreamsOf(tasks, api.FSLogNameStdout, api.FSLogNameStderr)
	return all, interfaces.Span{FromEnd: true, Offset: int64(tailBytes / max(1, len(all)))}
}

// lastOutput returns the last lines of each stream, one stream after the other: log files keep no times.
func lastOutput(ctx context.Context, t base.Target) (all []logLine) {
	streams, span := streamsOf(t)
	files, err := t.Files()
	for i := 0; err == nil && i < len(streams); i++ { // a stream that can't be read shows nothing
		_ = copyLines(ctx, files, streams[i], span, func(lines []logLine) { all = append(all, lines...) })
	}
	return all
}

// copyLines passes the lines of each frame on. Errors: errBehind; those of the files and ctx.
func copyLines(ctx context.Context, files interfaces.Files, s follow.TaskStream, span interfaces.Span,
	to func([]logLine)) error {
	frames, err := files.Logs(s.Task, s.Kind, span)
	if err != nil {
		return err
	}
	defer frames.Close()
	var lines []logLine
	split := follow.LineSplitter{Print: func(line []byte) error {
		lines = append(lines, logLine{s.Task, s.Kind == api.FSLogNameStderr, linewriter.OneLine(string(line))})
		return nil
	}}
	behind := 0
	err = follow.CopyFrames(ctx, ctx, frames, func(f *api.StreamFrame) error {
		if behind++; len(f.Data) < fullFrame {
			behind = 0
		}
		if behind > maxBehind {
			return errBehind
		}
		err := split.Add(f.Data)
		to(lines)
		lines = nil
		return err
	})
	err = errors.Join(err, split.End())
	to(lines)
	return err
}

// follow sends the end of the output and what is written from now on, as server-sent events. A slow browser slows down
// nobody else: what it can't take is skipped, and a line says so.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, t base.Target) {
	files, err := t.Files()
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the request has been read
	w.Header().Set("Content-Type", "text/event-stream")
	ctx, cancel := context.WithCancel(r.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var mu sync.Mutex // held by the one who writes
	send := func(lines ...logLine) {
		mu.Lock()
		defer mu.Unlock()
		data, _ := json.Marshal(lines) // text alone
		_ = control.SetWriteDeadline(time.Now().Add(answerTime))
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); errors.Join(err, control.Flush()) != nil {
			cancel()
		}
	}
	send() // the browser knows by the head of the answer that it is connected
	streams, span := streamsOf(t)
	span.Follow, span.Await = true, true
	for _, stream := range streams {
		all.Go(func() {
			for errors.Is(copyLines(ctx, files, stream, span, func(lines []logLine) {
				if len(lines) > 0 {
					send(lines...)
					time.Sleep(framePause) // lines that come at once are sent together
				}
			}), errBehind) {
				send(logLine{stream.Task, true, "[" + errBehind.Error() + "]"})
			}
		})
	}
	<-ctx.Done()
}

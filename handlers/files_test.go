package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/internal/must"
)

// fakeFiles is a directory of one file. What is read of real ones, and followed, is tested where these are: see
// allocrunner.
type fakeFiles struct {
	frames func() interfaces.Frames
	err    error
	span   interfaces.Span // of the last call
}

func (f *fakeFiles) List(path string, _ int) ([]*api.AllocFileInfo, error) {
	return []*api.AllocFileInfo{{Name: "file", Size: 5, FileMode: "-rw-r--r--",
		ModTime: time.Unix(1795253490, 0).UTC()}}, f.err
}

func (f *fakeFiles) Stat(path string) (*api.AllocFileInfo, error) {
	return &api.AllocFileInfo{Name: path, Size: 5, FileMode: "-rw-r--r--", ContentType: "text/plain; charset=utf-8"}, f.err
}

func (f *fakeFiles) Open(_ string, span interfaces.Span) (interfaces.Frames, error) {
	if f.span = span; f.err != nil {
		return nil, f.err
	}
	return f.frames(), nil
}

func (f *fakeFiles) Logs(_, _ string, span interfaces.Span) (interfaces.Frames, error) {
	return f.Open("", span)
}

// fakeFrames are those that a test sends, until it closes them.
type fakeFrames struct {
	frames chan *api.StreamFrame
	err    error // instead of io.EOF
	closed chan struct{}
	once   sync.Once
}

func newFakeFrames(frames ...*api.StreamFrame) *fakeFrames {
	f := &fakeFrames{frames: make(chan *api.StreamFrame, len(frames)), closed: make(chan struct{})}
	for _, frame := range frames {
		f.frames <- frame
	}
	close(f.frames)
	return f
}

func openFakeFrames() *fakeFrames {
	return &fakeFrames{frames: make(chan *api.StreamFrame, 10), closed: make(chan struct{})}
}

func (f *fakeFrames) Next(ctx context.Context) (*api.StreamFrame, error) {
	select { // what is there comes first
	case frame, ok := <-f.frames:
		return f.frame(frame, ok)
	default:
	}
	select {
	case frame, ok := <-f.frames:
		return f.frame(frame, ok)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fakeFrames) frame(frame *api.StreamFrame, ok bool) (*api.StreamFrame, error) {
	if ok {
		return frame, nil
	}
	if f.err != nil {
		return nil, f.err
	}
	return nil, io.EOF
}

func (f *fakeFrames) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

const fsPath = "/v1/client/fs/"

// TestFileRequests: what is wrong with a request is said before anything is read.
func TestFileRequests(t *testing.T) {
	alloc := quietAlloc(t)
	s := newServer(t, alloc, everyRoute)
	for path, want := range map[string]string{
		"stat/ALLOC":                              "must provide a file name",
		"cat/ALLOC?path=":                         "must provide a file name",
		"readat/ALLOC?path=x":                     "must provide an offset",
		"readat/ALLOC?path=x&offset=-1":           `offset must be a number of bytes, 0 or more, not "-1"`,
		"readat/ALLOC?path=x&offset=1&limit=many": `limit must be a number of bytes, not "many"`,
		"readat/ALLOC?path=x&offset=9223372036854775808": `offset must be a number of bytes, 0 or more, not ` +
			`"9223372036854775808"`,
		"stream/ALLOC?path=x&origin=middle":           "origin must be start or end",
		"stream/ALLOC?path=x&offset=-5&origin=end":    `offset must be a number of bytes, 0 or more, not "-5"`,
		"stream/ALLOC?path=x&follow=maybe":            `follow must be true or false, not "maybe"`,
		"logs/ALLOC":                                  "must provide task name",
		"logs/ALLOC?task=server":                      "must provide log type (stdout/stderr)",
		"logs/ALLOC?task=server&type=both":            "must provide log type (stdout/stderr)",
		"logs/ALLOC?task=nope&type=stdout":            `unknown task name "nope"`,
		"logs/ALLOC?task=server&type=stdout&plain=so": `plain must be true or false, not "so"`,
	} {
		got := s.do(t, http.MethodGet, fsPath+strings.Replace(path, "ALLOC", allocID, 1), goodToken, "")
		if got.Status != http.StatusBadRequest || got.Body != want {
			t.Errorf("%s = %d %q, want 400 %q", path, got.Status, got.Body, want)
		}
	}
}

// TestFileErrors: each error of the files is answered as such, also of those that are answered as a stream.
func TestFileErrors(t *testing.T) {
	alloc := quietAlloc(t)
	files := &fakeFiles{err: &interfaces.FileError{Path: "server/secrets/token", Err: interfaces.ErrSecretFile}}
	alloc.files = func(*interfaces.Reader) interfaces.Files { return files }
	s := newServer(t, alloc, everyRoute)
	query := "/" + allocID + "?path=server/secrets/token&offset=0&task=server&type=stdout"
	for _, kind := range []string{"ls", "stat", "cat", "readat", "stream", "logs"} {
		got := s.do(t, http.MethodGet, fsPath+kind+query, goodToken, "")
		if got.Status != http.StatusForbidden || got.Body != "Reading secret file prohibited: server/secrets/token" {
			t.Errorf("%s = %d %q", kind, got.Status, got.Body)
		}
	}
	files.err = &interfaces.FileError{Path: "x", Err: interfaces.ErrNoLogs}
	got := s.do(t, http.MethodGet, fsPath+"logs"+query, goodToken, "")
	if want := `log entry for task "server" and log type "stdout" not found`; got.Status != http.StatusNotFound ||
		got.Body != want {
		t.Errorf("without log files: %d %q, want 404 %q", got.Status, got.Body, want)
	}
}

// TestLogsOfATaskThatHasNotStarted are none.
func TestLogsOfATaskThatHasNotStarted(t *testing.T) {
	alloc := quietAlloc(t)
	pending := *alloc.snapshot()
	pending.TaskStates = map[string]*api.TaskState{"server": {State: "pending"}}
	alloc.snapshot = func() *api.Allocation { return &pending }
	got := newServer(t, alloc).do(t, http.MethodGet, fsPath+"logs/"+allocID+"?task=server&type=stdout", goodToken, "")
	if got.Status != http.StatusNotFound || got.Body != `task "server" not started yet. No logs available` {
		t.Errorf("%d %q", got.Status, got.Body)
	}
}

// TestWhoReadsFiles: a task reads as the process that asks, or as the task where another user asks with its token; the
// operator as taskapi.
func TestWhoReadsFiles(t *testing.T) {
	alloc := quietAlloc(t)
	var callers []*interfaces.Reader
	alloc.files = func(caller *interfaces.Reader) interfaces.Files {
		callers = append(callers, caller)
		return &fakeFiles{}
	}
	s := newServer(t, alloc)
	s.do(t, http.MethodGet, fsPath+"ls/"+allocID, goodToken, "")
	s.do(t, http.MethodGet, fsPath+"ls/"+allocID, operator, "")
	others := auth.Owner{AllocationID: allocID, Task: "server", UID: 2000, GID: 3000}
	newServerOf(t, others, alloc).do(t, http.MethodGet, fsPath+"ls/"+allocID, goodToken, "")
	want := []*interfaces.Reader{{UID: peer.UID, GID: peer.GID}, nil, {UID: others.UID, GID: others.GID}}
	if diff := cmp.Diff(want, callers); diff != "" {
		t.Errorf("files were read as (-want +got):\n%s", diff)
	}
}

// TestContentTypes: nothing that a browser could run, whatever the file is.
func TestContentTypes(t *testing.T) {
	alloc := quietAlloc(t)
	s := newServer(t, alloc)
	const text, binary = "text/plain; charset=utf-8", "application/octet-stream"
	for content, want := range map[string]string{
		"<html><script>alert(1)</script>": text, "<?xml version='1.0'?><svg/>": text, "{}": text, "": text,
		"\x00\x01\x02": binary, "%PDF-1.7": binary, "\x89PNG\r\n\x1a\n": binary, "\x7fELF\x02\x01\x01\x00": binary,
	} {
		alloc.files = func(*interfaces.Reader) interfaces.Files {
			return &fakeFiles{frames: func() interfaces.Frames { return newFakeFrames(&api.StreamFrame{Data: []byte(content)}) }}
		}
		for _, kind := range []string{"cat", "readat", "logs"} {
			got := s.do(t, http.MethodGet, fsPath+kind+"/"+allocID+"?path=x&offset=0&task=server&type=stdout&plain=true",
				goodToken, "")
			wantType := want
			if kind == "logs" {
				wantType = text
			}
			if got.Body != content || got.Header.Get("Content-Type") != wantType ||
				got.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s of %q: %q, %v", kind, content, got.Body, got.Header)
			}
		}
	}
}

// TestFramesAsJSON: the encoding is that of encoding/json, which clients decode.
func TestFramesAsJSON(t *testing.T) {
	frames := []*api.StreamFrame{
		{Data: []byte("a"), File: "alloc/logs/web.stdout.0", Offset: 1},
		{Data: []byte(strings.Repeat("\x00\xff", 1000)), File: "a \"quoted\"\n<name>\xff", Offset: 1 << 40},
		{File: "x", FileEvent: "file truncated"},
		{File: "x", FileEvent: "file deleted", Offset: 5},
	}
	alloc := quietAlloc(t)
	files := &fakeFiles{frames: func() interfaces.Frames { return newFakeFrames(frames...) }}
	alloc.files = func(*interfaces.Reader) interfaces.Files { return files }
	got := newServer(t, alloc).do(t, http.MethodGet, fsPath+"stream/"+allocID+"?path=x&follow=false&origin=end&offset=7",
		goodToken, "")
	var want strings.Builder
	for _, f := range frames {
		line := map[string]any{"File": f.File}
		if len(f.Data) > 0 {
			line["Data"] = f.Data
		}
		if f.FileEvent != "" {
			line["FileEvent"] = f.FileEvent
		}
		if f.Offset != 0 {
			line["Offset"] = f.Offset
		}
		text := must.Get(json.Marshal(line))(t)
		want.Write(append(text, '\n'))
	}
	if diff := cmp.Diff(want.String(), got.Body); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if files.span != (interfaces.Span{Offset: 7, FromEnd: true}) {
		t.Errorf("read %+v", files.span)
	}
}

// followLogs asks a server in a bubble for a task's output with follow, and returns the body of the answer and how the
// server is stopped.
func followLogs(t *testing.T, frames interfaces.Frames, plain bool, token string,
	change ...func(*handlers.Config)) (body io.Reader, stop func()) {
	t.Helper()
	alloc := quietAlloc(t)
	alloc.files = func(*interfaces.Reader) interfaces.Files {
		return &fakeFiles{frames: func() interfaces.Frames { return frames }}
	}
	dial, stop := bubbled(t, alloc, change...)
	c := dial()
	t.Cleanup(func() { c.Close() })
	target := fsPath + "logs/" + allocID + "?task=server&type=stdout&follow=true"
	if plain {
		target += "&plain=true"
	}
	go func() { _, _ = io.WriteString(c, head("GET", target, token, "")) }()
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", response, err)
	}
	return response.Body, stop
}

// TestFollowedFile: frames as they come, heartbeats between them, and what is there at the server's end; then the file
// is closed.
func TestFollowedFile(t *testing.T) {
	for name, plain := range map[string]bool{"frames": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				frames := openFakeFrames()
				followed, stop := followLogs(t, frames, plain, goodToken)
				frames.frames <- &api.StreamFrame{Data: []byte("one\n"), File: "f", Offset: 4}
				body, want := bufio.NewReader(followed), "one\n"
				if !plain {
					want = `{"Data":"b25lCg==","File":"f","Offset":4}` + "\n"
				}
				if line, err := body.ReadString('\n'); line != want {
					t.Errorf("read %q, %v", line, err)
				}
				if !plain {
					start := time.Now()
					if line, err := body.ReadString('\n'); line != "{}\n" || time.Since(start) != time.Second {
						t.Errorf("read %q, %v after %v; want a heartbeat after 1s", line, err, time.Since(start))
					}
				}
				frames.frames <- &api.StreamFrame{Data: []byte("last\n"), File: "f", Offset: 9}
				stopped := make(chan struct{})
				go func() { stop(); close(stopped) }()
				rest, err := io.ReadAll(body)
				<-stopped
				if want := map[bool]string{true: "last\n", false: `{"Data":"bGFzdAo=","File":"f","Offset":9}` +
					"\n"}[plain]; string(rest) != want || err != nil {
					t.Errorf("at the end: %q, %v; want %q", rest, err, want)
				}
				<-frames.closed
			})
		})
	}
}

// endlessFrames are those of a task that goes on printing: one each millisecond, however late it is.
type endlessFrames struct{ *fakeFrames }

func (f endlessFrames) Next(context.Context) (*api.StreamFrame, error) {
	time.Sleep(time.Millisecond)
	return &api.StreamFrame{Data: []byte("more\n")}, nil
}

// TestFollowIsCutShort by the server's end, and says so.
func TestFollowIsCutShort(t *testing.T) {
	for name, plain := range map[string]bool{"frames": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				frames := openFakeFrames()
				body, stop := followLogs(t, endlessFrames{frames}, plain, goodToken)
				stopped := make(chan struct{})
				go func() { stop(); close(stopped) }()
				got, err := io.ReadAll(body)
				<-stopped
				switch {
				case plain && !errors.Is(err, io.ErrUnexpectedEOF):
					t.Errorf("error %v, want an unexpected end", err)
				case !plain &&
					(err != nil || !strings.HasSuffix(string(got), `{"Error":"the server stops, and there was more: connect again"}`+
						"\n")):
					t.Errorf("error %v, and no reason at the end of %q", err, got[max(0, len(got)-100):])
				}
				<-frames.closed
			})
		})
	}
}

// TestFollowEndsWithItsToken, with the reason in a line that programs take for a heartbeat; a plain one breaks off.
func TestFollowEndsWithItsToken(t *testing.T) {
	for name, plain := range map[string]bool{"frames": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
				frames := openFakeFrames()
				body, stop := followLogs(t, frames, plain, token, func(c *handlers.Config) { c.Authenticator = authenticator })
				defer stop()
				var got []byte
				read := make(chan error)
				go func() {
					var err error
					got, err = io.ReadAll(body)
					read <- err
				}()
				synctest.Wait()
				happens()
				frames.frames <- &api.StreamFrame{Data: []byte("secret\n")}
				close(frames.frames)
				err := <-read
				if sent := strings.Contains(string(got), "secret") || strings.Contains(string(got), "c2VjcmV0"); sent != allowed {
					t.Errorf("the frame was sent: %v, want %v: %q", sent, allowed, got)
				}
				switch {
				case allowed:
					if err != nil {
						t.Error(err)
					}
				case plain:
					if !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("error %v, want an unexpected end", err)
					}
				case !strings.Contains(string(got), `{"Error":"the token is not valid any more`):
					t.Errorf("no reason in %q", got)
				}
				<-frames.closed
			})
		})
	}
}

// TestFileThatBreaks off in the middle is not taken for whole.
func TestFileThatBreaksOff(t *testing.T) {
	alloc := quietAlloc(t)
	frames := newFakeFrames(&api.StreamFrame{Data: []byte("one")})
	frames.err = errors.New("input/output error")
	alloc.files = func(*interfaces.Reader) interfaces.Files {
		return &fakeFiles{frames: func() interfaces.Frames { return frames }}
	}
	s := newServer(t, alloc)
	body := must.Get(s.sdk(t, goodToken).AllocFS().Cat(&api.Allocation{ID: allocID}, "x", nil))(t)
	defer body.Close()
	if got, err := io.ReadAll(body); string(got) != "one" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read %q, %v; want an unexpected end", got, err)
	}
	if !strings.Contains(s.log.String(), "input/output error") {
		t.Errorf("the log does not say why: %s", s.log.String())
	}
}

// TestFilesAreClosed also when the stream has no place, or no body.
func TestFilesAreClosed(t *testing.T) {
	alloc := quietAlloc(t)
	var opened []*fakeFrames
	alloc.files = func(*interfaces.Reader) interfaces.Files {
		return &fakeFiles{frames: func() interfaces.Frames {
			opened = append(opened, newFakeFrames())
			return opened[len(opened)-1]
		}}
	}
	s := newServer(t, alloc)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		s.do(t, method, fsPath+"cat/"+allocID+"?path=x", goodToken, "")
	}
	s.stop()
	for i, f := range opened {
		select {
		case <-f.closed:
		default:
			t.Errorf("file %d is open", i)
		}
	}
	if len(opened) != 2 {
		t.Errorf("%d files were opened", len(opened))
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
)

// printerJob is a task that prints, with rotation, what it reads, and one that has a file for itself.
const printerJob = `
job "demo" {
  group "web" {
    task "server" {
      driver = "raw_exec"
      USER
      identity {
        file = true
      }
      logs {
        max_files     = 3
        max_file_size = 1
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<EOT
echo first; echo oops >&2; umask 077; echo own > $NOMAD_ALLOC_DIR/data/server; mkfifo local/pipe
ln -s ../secrets/nomad_token local/token; ln -s /etc local/etc; echo '<html>' > local/page
touch local/input; exec tail -n +1 -f local/input
EOT
        ]
      }
    }
    task "other" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "umask 077; echo own > $NOMAD_ALLOC_DIR/data/other; echo started; exec sleep 1000"]
      }
    }
  }
}
`

// as returns the SDK on a socket for a process of another user: the kernel takes the user of a connection from the
// thread that makes it.
func (r *running) as(uid int, addr, token string) *api.Client {
	r.t.Helper()
	dir, err := os.Open(filepath.Dir(addr)) // which only the task's group reaches by its path
	must.OK(r.t, err)
	r.t.Cleanup(func() { dir.Close() })
	addr = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(addr))
	dial := func(context.Context, string, string) (conn net.Conn, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // the thread ends with the goroutine
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(uid), uintptr(uid), 0); errno != 0 {
				err = errno
				return
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
				err = errno
				return
			}
			conn, err = net.Dial("unix", addr)
		}()
		<-done
		return conn, err
	}
	config := api.DefaultConfig()
	config.Address, config.SecretID = "http://127.0.0.1:1", token
	config.HttpClient = &http.Client{Transport: &http.Transport{DialContext: dial}}
	client, err := api.NewClient(config)
	must.OK(r.t, err)
	r.t.Cleanup(client.Close)
	return client
}

// fails checks for the words and the status of a refusal.
func fails(t *testing.T, what string, err error, status int, words string) {
	t.Helper()
	if answer, ok := errors.AsType[api.UnexpectedResponseError](err); !ok || answer.StatusCode() != status ||
		answer.Body() != words {
		t.Errorf("%s: %v; want %d %q", what, err, status, words)
	}
}

func content(body io.ReadCloser, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return string(text), err
}

// TestSDKFiles walks the SDK's AllocFS over the operator's socket and a task's, as that task's user.
func TestSDKFiles(t *testing.T) {
	t.Parallel()
	user, uid := "", os.Geteuid()
	if uid == 0 {
		user, uid = `user = "65533:65533"`, 65533
	}
	dir := shortDir(t)
	must.OK(t, os.Chmod(dir, 0o711))
	r := startRun(t, dir, strings.Replace(printerJob, "USER", user, 1))
	operator := r.operator()
	r.eventually("ready", func() bool {
		_, err := os.Stat(r.allocDir("server", "local", "input"))
		_, other := os.Stat(r.allocDir("alloc", "data", "other"))
		return errors.Join(err, other) == nil
	})
	task := r.as(uid, r.layout.TaskSocket(testAllocID, "server"), r.file("server", "secrets", "nomad_token"))
	for who, client := range map[string]*api.Client{"operator": operator, "task": task} {
		t.Run(who, func(t *testing.T) { walkFiles(t, client) })
	}
	alloc := &api.Allocation{ID: testAllocID}
	if text, err := content(operator.AllocFS().Cat(alloc, "alloc/data/other", nil)); text != "own\n" || err != nil {
		t.Errorf("the operator reads %q, %v", text, err)
	}
	// by taskapi's user
	proxied := sdk(t, startProxy(t, r, "demo", "server"), r.file("server", "secrets", "nomad_token"))
	for _, client := range []*api.Client{task, proxied} {
		if _, err := content(client.AllocFS().Cat(alloc, "alloc/data/other", nil)); os.Geteuid() == 0 {
			fails(t, "another task's own file", err, 403, "alloc/data/other: permission denied for the task's user")
		}
	}
	followFile(t, r, operator)
	followLogs(t, r, operator, task)
}

// walkFiles reads what both may, and what nobody may.
func walkFiles(t *testing.T, client *api.Client) {
	t.Helper()
	alloc, fs := &api.Allocation{ID: testAllocID}, client.AllocFS()
	list, _, err := fs.List(alloc, "/", nil)
	if err != nil || len(list) != 3 || list[0].Name != "alloc" || !list[0].IsDir || list[1].Name != "other" ||
		list[2].Name != "server" {
		t.Errorf("list: %+v, %v", list, err)
	}
	info, _, err := fs.Stat(alloc, "server/local/page", nil)
	if err != nil || info.Name != "page" || info.Size != 7 || info.ContentType != "text/html; charset=utf-8" ||
		info.ModTime.IsZero() {
		t.Errorf("stat: %+v, %v", info, err)
	}
	if text, err := content(fs.Cat(alloc, "server/local/page", nil)); text != "<html>\n" || err != nil {
		t.Errorf("cat: %q, %v", text, err)
	}
	for span, want := range map[[2]int64]string{{1, 4}: "html", {1, 0}: "html>\n", {1, -1}: "html>\n", {5, 100}: ">\n",
		{7, 1}: "", {1 << 40, 0}: ""} {
		if text, err := content(fs.ReadAt(alloc, "server/local/page", span[0], span[1], nil)); text != want || err != nil {
			t.Errorf("readat %v: %q, %v; want %q", span, text, err, want)
		}
	}
	_, err = content(fs.ReadAt(alloc, "server/local/page", -1, 0, nil))
	fails(t, "readat -1", err, 400, `offset must be a number of bytes, 0 or more, not "-1"`)

	for path, want := range map[string]struct {
		status int
		words  string
	}{
		"server/secrets/nomad_token": {403, "Reading secret file prohibited: server/secrets/nomad_token"},
		"server/local/token":         {403, "Reading secret file prohibited: server/local/token"},
		"other/private/x":            {403, "Reading private file prohibited: other/private/x"},
		"../../keyring":              {403, "Path escapes the alloc directory"},
		"server/local/etc/passwd":    {403, "Path escapes the alloc directory"},
		"operator.token":             {404, "operator.token: no such file or directory"},
		"server/local/nope":          {404, "server/local/nope: no such file or directory"},
		"server/local/pipe":          {400, "server/local/pipe: not a regular file"},
		"server/local":               {400, "server/local: is a directory"},
	} {
		_, err := content(fs.Cat(alloc, path, nil))
		fails(t, "cat "+path, err, want.status, want.words)
		frames, errs := fs.Stream(alloc, path, api.OriginStart, 0, nil, nil)
		select {
		case err := <-errs:
			fails(t, "stream "+path, err, want.status, want.words)
		case f := <-frames:
			t.Errorf("stream %s: %+v", path, f)
		case <-time.After(deadline):
			t.Errorf("stream %s is not refused", path)
		}
	}
	_, _, err = fs.List(alloc, "server/secrets", nil)
	fails(t, "ls of secrets", err, 403, "Reading secret file prohibited: server/secrets")
	_, _, err = fs.List(alloc, "server/local/page", nil)
	fails(t, "ls of a file", err, 400, "server/local/page: not a directory")
	_, errs := fs.Logs(alloc, false, "nope", "stdout", api.OriginStart, 0, nil, nil)
	fails(t, "logs of an unknown task", <-errs, 400, `unknown task name "nope"`)
	other := &api.Allocation{ID: strings.Replace(testAllocID, "1", "2", 1)}
	_, _, err = fs.List(other, "/", nil)
	fails(t, "another allocation", err, 404, fmt.Sprintf("Unknown allocation %q", other.ID))

	for kind, want := range map[string]string{"stdout": "first\n", "stderr": "oops\n"} {
		frames, errs := fs.Logs(alloc, false, "server", kind, api.OriginStart, 0, nil, nil)
		if frames == nil {
			t.Fatal(<-errs)
		}
		var text strings.Builder
		for frame := range frames {
			text.Write(frame.Data)
			if frame.File != "alloc/logs/server."+kind+".0" || frame.Offset != int64(text.Len()) {
				t.Errorf("frame %+v", frame)
			}
		}
		if text.String() != want {
			select {
			case err = <-errs:
			default:
			}
			t.Errorf("%s: %q, %v; want %q", kind, text.String(), err, want)
		}
	}
}

// followFile sees what happens to a file.
func followFile(t *testing.T, r *running, client *api.Client) {
	t.Helper()
	path := r.allocDir("alloc", "data", "grows")
	must.OK(t, os.WriteFile(path, []byte("one"), 0o644))
	frames, errs := client.AllocFS().Stream(&api.Allocation{ID: testAllocID}, "alloc/data/grows", api.OriginEnd, 2, nil,
		nil)
	next := func(want string) {
		t.Helper()
		select {
		case f := <-frames:
			if got := fmt.Sprintf("%s %s %d", f.Data, f.FileEvent, f.Offset); f.File != "alloc/data/grows" || got != want {
				t.Errorf("frame %+v %s, want %s", f, got, want)
			}
		case err := <-errs:
			t.Fatalf("%v in place of %s", err, want)
		case <-time.After(deadline):
			t.Fatalf("no frame in place of %s", want)
		}
	}
	next("ne  3")
	must.OK(t, os.Truncate(path, 0))
	next(" file truncated 0")
	must.OK(t, os.Remove(path))
	next(" file deleted 0")
	if err := <-errs; !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

// counter counts what is written.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

// followLogs has both callers, and one without frames, read what the task prints over rotations, to the end of the
// allocation.
func followLogs(t *testing.T, r *running, clients ...*api.Client) {
	t.Helper()
	alloc := &api.Allocation{ID: testAllocID}
	type result struct {
		text string
		err  error
	}
	results, read := make(chan result), make([]atomic.Int64, len(clients)+1)
	for i, client := range clients {
		frames, errs := client.AllocFS().Logs(alloc, true, "server", "stdout", api.OriginStart, 0, nil, nil)
		if frames == nil {
			t.Fatal(<-errs)
		}
		go func() {
			var text strings.Builder
			for frame := range frames {
				text.Write(frame.Data)
				read[i].Store(int64(text.Len()))
			}
			select {
			case err := <-errs:
				results <- result{text.String(), err}
			default:
				results <- result{text.String(), nil}
			}
		}()
	}
	plain, err := clients[0].Raw().Response("/v1/client/fs/logs/"+testAllocID, &api.QueryOptions{Params: map[string]string{
		"task": "server", "type": "stdout", "follow": "true", "plain": "true",
	}})
	must.OK(t, err)
	go func() {
		defer plain.Close()
		var text strings.Builder
		_, err := io.Copy(&text, io.TeeReader(plain, counter{&read[len(clients)]}))
		results <- result{text.String(), err}
	}()
	want := new(strings.Builder)
	want.WriteString("first\n")
	input := must.Get(os.OpenFile(r.allocDir("server", "local", "input"), os.O_WRONLY|os.O_APPEND, 0))(t)
	defer input.Close()
	write := func(text string) {
		want.WriteString(text)
		must.Get(input.WriteString(text))(t)
	}
	for i := range 3000 { // three files of a megabyte
		write(fmt.Sprintf("%d %s\n", i, strings.Repeat("x", 1000)))
	}
	r.eventually("all have read all of it", func() bool {
		for i := range read {
			if read[i].Load() < int64(want.Len()) {
				return false
			}
		}
		return true
	})
	write("the end\n") // and the end of the allocation with it
	r.eventually("written", func() bool {
		text, err := os.ReadFile(r.allocDir("alloc", "logs", "server.stdout.2"))
		return err == nil && strings.HasSuffix(string(text), "the end\n")
	})
	if code := r.stop(); code != base.ExitOK {
		t.Errorf("exit code %d", code)
	}
	for range len(clients) + 1 {
		if got := <-results; got.text != want.String() || got.err != nil {
			t.Errorf("a follower has %d bytes of %d, %v", len(got.text), want.Len(), got.err)
		}
	}
}

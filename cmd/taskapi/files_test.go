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
echo first; umask 077; echo own > $NOMAD_ALLOC_DIR/data/server
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
	dir := must.Get(os.Open(filepath.Dir(addr)))(r.t) // which only the task's group reaches by its path
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
	client := must.Get(api.NewClient(config))(r.t)
	r.t.Cleanup(client.Close)
	return client
}

func content(body io.ReadCloser, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return string(text), err
}

// TestSDKFiles: over a task's socket, a caller reads files with the rights of the task's user. Both the operator and
// the task follow the task's output to its end.
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
	alloc := &api.Allocation{ID: testAllocID}
	if text, err := content(operator.AllocFS().Cat(alloc, "alloc/data/other", nil)); text != "own\n" || err != nil {
		t.Errorf("the operator reads %q, %v", text, err)
	}
	// by taskapi's user
	proxied := sdk(t, startProxy(t, r, "demo", "server"), r.file("server", "secrets", "nomad_token"))
	for _, client := range []*api.Client{task, proxied} {
		if _, err := content(client.AllocFS().Cat(alloc, "alloc/data/other", nil)); os.Geteuid() == 0 &&
			answeredStatus(err) != http.StatusForbidden {
			t.Errorf("another task's own file: %v", err)
		}
	}
	followLogs(t, r, operator, task)
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

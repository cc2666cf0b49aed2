package examples_test

import (
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"taskapi/internal/must"
)

// TestActivated runs activated.nomad.hcl, and restarts its server beside requests, none of which may fail.
func TestActivated(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	taskapi := onData(t, must.ShortDir(t))
	t.Cleanup(func() { taskapi("stop", "activated") })
	if taskapi("run", "-d", "--wait", "activated.nomad.hcl"); t.Failed() {
		t.Fatal(taskapi("logs", "activated"))
	}
	if ps := taskapi("ps", "activated"); !strings.Contains(ps, "serving as process") {
		t.Errorf("ps does not show what the server says:\n%s", ps)
	}
	address := strings.TrimSpace(taskapi("service", "info", "-t", "{{(index . 0).Address}}:{{(index . 0).Port}}",
		"activated"))
	processes := map[string]bool{}
	quit := make(chan struct{})
	var clients sync.WaitGroup
	clients.Go(func() {
		// One connection for each request, as from many clients.
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for {
			select {
			case <-quit:
				return
			default:
			}
			answer, err := client.Get("http://" + address)
			if err != nil {
				t.Error(err)
				return
			}
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if err != nil || !strings.HasPrefix(string(body), "hello from process ") {
				t.Errorf("%q, %v", body, err)
				return
			}
			processes[string(body)] = true
		}
	})
	for range 3 {
		if out := taskapi("restart", "activated"); !strings.Contains(out, "The task says that it is ready") {
			t.Errorf("restart does not wait until the server is ready:\n%s", out)
		}
		answer, err := http.Get("http://" + address) // of the next process
		must.OK(t, err)
		answer.Body.Close()
	}
	close(quit)
	clients.Wait()
	if len(processes) < 2 {
		t.Errorf("one process has answered all: %v", processes)
	}
}

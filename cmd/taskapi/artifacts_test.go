package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// artifactsJob is a task that says what was fetched for it.
const artifactsJob = `
variable "url" {}
variable "token" {}
job "artifacts" {
  group "g" {
    restart {
      attempts = 5
      delay    = "0s"
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "cd local; cat first second rendered >> said; echo >> said; exec sleep 1000"]
      }
      meta {
        token = var.token
      }
      artifact {
        source = "${var.url}/first?v=${var.token}"
        headers {
          X-Token = "$${NOMAD_META_TOKEN}"
        }
      }
      artifact {
        source      = "${var.url}/second?v=${var.token}"
        mode        = "file"
        destination = "$${NOMAD_TASK_DIR}/second"
      }
      template {
        source      = "local/first"
        destination = "local/rendered"
      }
    }
  }
}
`

// TestArtifactsAreFetchedOnce kills taskapi while it fetches, and later, and updates the job: what is complete is not
// fetched again, but for another version that replaces the allocation.
func TestArtifactsAreFetchedOnce(t *testing.T) {
	t.Parallel()
	const token = "the-secret-token"
	var first, second atomic.Int64
	hanging := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/first" && strings.HasPrefix(r.Header.Get("X-Token"), token):
			fmt.Fprintf(w, "first %d ", first.Add(1))
		case r.URL.Path == "/second":
			switch n := second.Add(1); n {
			case 1: // until taskapi is killed
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				hanging <- struct{}{}
				<-r.Context().Done()
			case 2:
				http.Error(w, "not now", http.StatusServiceUnavailable)
			default:
				fmt.Fprintf(w, "second %d ", n)
			}
		default:
			t.Errorf("asked for %s with %q", r.URL, r.Header)
			http.Error(w, "no such artifact", http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	dir := shortDir(t)
	file := jobFile(t, artifactsJob)
	local := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "main", "local")
	said := func() string {
		text, _ := os.ReadFile(filepath.Join(local, "said"))
		return string(text)
	}
	flags := []string{"-var", "url=" + server.URL, "-var", "token=" + token}
	all := ""
	p := startProcess(t, dir, file, flags...)
	<-hanging
	until(t, p, "the first artifact is there", func() bool {
		_, err := os.Stat(filepath.Join(local, "first"))
		return err == nil
	})
	kill(t, p)
	all += p.out.String()

	p = startProcess(t, dir, file, flags...)
	until(t, p, "the task runs, and taskapi has saved that", func() bool {
		return strings.Contains(said(), "second 3 first") && strings.Contains(p.out.String(), "Started")
	})
	if out := p.out.String(); !strings.Contains(out, "Failed Artifact Download") || !strings.Contains(out, "503") ||
		!strings.Contains(out, "Downloading Artifacts") {
		t.Errorf("the events do not tell of the failure:\n%s", out)
	}
	kill(t, p)
	all += p.out.String()

	p = startProcess(t, dir, file, flags...)
	until(t, p, "it is resumed", func() bool { return strings.Contains(p.out.String(), "Resuming") })
	taskapi(t, "restart", "-data-dir", dir, testAllocID)
	until(t, p, "the task runs again", func() bool { return strings.Count(said(), "second 3") == 2 })
	firsts, seconds := first.Load(), second.Load()
	if firsts > 2 || seconds != 3 { // the agent may have been killed before the first one was saved
		t.Errorf("fetched %d and %d times", firsts, seconds)
	}
	taskapi(t, "update", "-data-dir", dir, "-replace", "-var", "url="+server.URL, "-var", "token="+token+"2", testAllocID,
		file)
	until(t, p, "another version runs", func() bool { return strings.Contains(said(), "second 4") })
	if first.Load() != firsts+1 {
		t.Errorf("another version of the job fetches the first %d times", first.Load()-firsts)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(local), "private", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if all += p.out.String(); strings.Contains(all, token) {
		t.Errorf("the token is in the output:\n%s", all)
	}
	must.OK(t, p.Process.Signal(os.Interrupt))
	_ = p.Wait()
}

// TestTheStopEndsADownload stops an allocation while it fetches.
func TestTheStopEndsADownload(t *testing.T) {
	t.Parallel()
	hanging, gone := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		close(hanging)
		<-r.Context().Done()
		close(gone)
	}))
	t.Cleanup(server.Close)
	dir := shortDir(t)
	file := jobFile(t, artifactsJob)
	p := startProcess(t, dir, file, "-var", "url="+server.URL, "-var", "token=x")
	<-hanging
	taskapi(t, "stop", "-data-dir", dir, testAllocID)
	<-gone
	_ = p.Wait()
	private := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "main", "private")
	if left, _ := filepath.Glob(private + "/*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"taskapi/internal/must"
)

// TestCopyWhileWritten copies a data directory while its variables and its allocation's state are written. Each copy
// runs once the original has been stopped, and has a value of the variable that was written before.
func TestCopyWhileWritten(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	place, err := os.MkdirTemp("", "copy") // short: sockets lie in it
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(place) })
	taskapi := func(data string, args ...string) (string, error) {
		command := exec.Command(filepath.Join(bin, "taskapi"), args...)
		command.Env = append(os.Environ(), "TASKAPI_DATA_DIR="+filepath.Join(place, data))
		out, err := command.CombinedOutput()
		return string(out), err
	}
	must := func(data string, args ...string) string {
		t.Helper()
		out, err := taskapi(data, args...)
		if err != nil {
			t.Errorf("%s: taskapi %s: %v\n%s", data, strings.Join(args, " "), err, out)
		}
		return out
	}
	must("data", "var", "put", "nomad/jobs/hello", "n=0")
	must("data", "run", "-d", "hello.nomad.hcl")
	t.Cleanup(func() { _, _ = taskapi("data", "stop", "--all", "--now") })

	const copies = 5
	ended := make(chan struct{})
	var writers sync.WaitGroup
	for _, write := range []func(n int){
		func(n int) { must("data", "var", "put", "--force", "nomad/jobs/hello", "n="+strconv.Itoa(n)) },
		func(int) { must("data", "restart", "hello") },
	} {
		writers.Go(func() {
			for n := 1; ; n++ {
				select {
				case <-ended:
					return
				default:
					write(n)
				}
			}
		})
	}
	for n := range copies {
		// Sockets can't be copied, and files change meanwhile: tar exits with 1.
		const copyAll = `mkdir "$2" && { tar -cf "$2.tar" -C "$1" . || [ $? = 1 ]; } && tar -xpf "$2.tar" -C "$2"`
		copied, err := exec.Command("sh", "-c", copyAll, "sh", filepath.Join(place, "data"),
			filepath.Join(place, strconv.Itoa(n))).CombinedOutput()
		if err != nil {
			t.Errorf("copy %d: %v\n%s", n, err, copied)
		}
	}
	close(ended)
	writers.Wait()
	must("data", "stop", "--now", "hello")
	for n := range copies {
		data := strconv.Itoa(n)
		must(data, "run", "-d", "hello.nomad.hcl")
		if out := must(data, "var", "get", "nomad/jobs/hello"); !strings.Contains(out, "n  =  ") {
			t.Errorf("copy %d: the variable is %s", n, out)
		}
		must(data, "stop", "--now", "hello")
	}
}

package examples_test

import (
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
	place := must.ShortDir(t)
	original := onData(t, filepath.Join(place, "data"))
	original("var", "put", "nomad/jobs/hello", "n=0")
	original("run", "-d", "hello.nomad.hcl")
	t.Cleanup(func() { original("stop", "--all", "--now") })

	const copies = 5
	ended := make(chan struct{})
	var writers sync.WaitGroup
	for _, write := range []func(n int){
		func(n int) { original("var", "put", "--force", "nomad/jobs/hello", "n="+strconv.Itoa(n)) },
		func(int) { original("restart", "hello") },
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
	original("stop", "--now", "hello")
	for n := range copies {
		taskapi := onData(t, filepath.Join(place, strconv.Itoa(n)))
		taskapi("run", "-d", "hello.nomad.hcl")
		if out := taskapi("var", "get", "nomad/jobs/hello"); !strings.Contains(out, "n  =  ") {
			t.Errorf("copy %d: the variable is %s", n, out)
		}
		taskapi("stop", "--now", "hello")
	}
}

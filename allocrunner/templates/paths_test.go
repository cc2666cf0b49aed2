package templates

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// TestHoldsWaitsForNoPipe: a task that exchanges its file for a pipe, again and again, keeps nobody waiting.
func TestHoldsWaitsForNoPipe(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "pipe")
	must.OK(t, os.WriteFile(file, []byte("text"), 0o600))
	must.OK(t, unix.Mkfifo(pipe, 0o600))
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0) // a reader of the pipe waits for text
	must.OK(t, err)
	defer writer.Close()
	var exchanging sync.WaitGroup
	quit := make(chan struct{})
	exchanging.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, pipe, unix.RENAME_EXCHANGE)
			}
		}
	})
	defer exchanging.Wait()
	defer close(quit)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for range 5000 {
			place{path: "file"}.holds(interfaces.TaskDir{Dir: dir}, []byte("text"), nil, 0)
		}
	}()
	select {
	case <-looked:
	case <-time.After(polltest.Deadline()):
		t.Fatal("it waits for the pipe")
	}
}

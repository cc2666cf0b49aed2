package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner"
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/cluster/stores"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// TestMain also runs the processes of the tests, hundreds of them. So what this binary imports has to initialize fast:
// go-cmp and large regular expressions would take a sixth of each start.
func TestMain(m *testing.M) {
	if code, kept := allocrunner.KeeperMain(os.Args, shortAddress); kept {
		unix.Exit(code) // os.Exit would let the race detector sleep for a second
	}
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil { // so would the other processes
		panic(err)
	}
	if addr := os.Getenv("TASKAPI_TEST_SERVE"); addr != "" {
		serveForTest(addr)
	}
	if addr := os.Getenv("TASKAPI_TEST_ASK"); addr != "" {
		askForTest(addr)
	}
	if os.Getenv("TASKAPI_TEST_LISTEN") != "" {
		listenForTest()
	}
	if text := os.Getenv("TASKAPI_TEST_NOTIFY"); text != "" {
		notifyForTest(text)
	}
	if os.Getenv("TASKAPI_TEST_TOP") != "" {
		topForTest()
	}
	if dir := os.Getenv("TASKAPI_TEST_STORE"); dir != "" {
		stores.Instead = func(string) cluster.Store { return sharedStore{disk.New(dir)} }
	}
	if os.Getenv("TASKAPI_TEST_MAIN") != "" { // a test that has to kill it runs it as a process of its own
		main()
	}
	// Most of the tests' time is spent waiting for processes. -parallel on the command line wins.
	if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	testscript.Main(tests{m}, map[string]func(){"taskapi": main})
}

// programs is a directory for programs that several tests use.
var programs string

// tests makes the directory, and removes it at the end. The processes of the tests don't come here.
type tests struct{ *testing.M }

func (t tests) Run() int {
	var err error
	if programs, err = os.MkdirTemp("", "programs"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(programs)
	return t.M.Run()
}

// testEnvironment returns the process around a command that a test runs.
func testEnvironment(stdout, stderr io.Writer) base.Environment {
	return base.Environment{Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr, Env: os.Environ(),
		Version: version}
}

// sharedStore is a store of this machine that the program takes for one of several machines. It is away while the file
// that $TASKAPI_TEST_CUT names exists.
type sharedStore struct{ cluster.Store }

func (sharedStore) FreshUntil(string) time.Time { return time.Now().Add(cluster.FreshTime) }

func (s sharedStore) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if _, err := os.Stat(os.Getenv("TASKAPI_TEST_CUT")); err == nil {
		return 0, fmt.Errorf("%w: cut off by a test", cluster.ErrUnavailable)
	}
	return s.Store.Commit(ctx, txn)
}

package processes_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
)

// TestMain runs the tests, or is one of the programs that they start: "helper NAME ARGS...".
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "helper" {
		unix.Exit(helper(os.Args[2], os.Args[3:])) // os.Exit would let the race detector sleep for a second
	}
	goleak.VerifyTestMain(m)
}

func helper(name string, args []string) int {
	switch name {
	case "report":
		_ = json.NewEncoder(os.Stdout).Encode(newReport())
		return 0
	case "stubborn": // ignores what can be ignored, and says when it does
		signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
		fmt.Println("ready")
		select {}
	case "say": // on the task's socket, and stays to be seen
		conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
		if err == nil {
			_, err = conn.Write([]byte(args[0]))
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("said")
		select {}
	case "longline":
		n, _ := strconv.Atoi(args[0])
		for range n {
			os.Stdout.Write([]byte(strings.Repeat("x", 1<<20)))
		}
		return 0
	case "supervise": // LOGDIR PROGRAM ARGS...: runs the program as task t and waits for ever
		l := processes.New(processes.Config{Logger: slog.New(slog.DiscardHandler), Config: proctree.Config{NoCgroup: true}})
		spec := drivers.Spec{Task: "t", Path: args[1], Args: args[2:], Dir: "/",
			Logs: drivers.LogSpec{Dir: args[0], MaxFiles: 2, MaxFileBytes: 1 << 20}}
		if _, err := l.Start(context.Background(), spec); err != nil {
			fmt.Println(err)
			return 1
		}
		select {}
	}
	return 64
}

// report is what a process finds itself to be.
type report struct {
	Args    []string
	Env     []string
	Dir     string
	Files   map[string]string
	Umask   int
	Blocked string
	Ignored string
	Session bool // it leads a session
	Group   bool // it leads its process group
	User    []int
	Groups  []int
	OOM     string
	Reopen  string // what comes of opening its own output by name
}

func newReport() report {
	r := report{Args: os.Args, Env: os.Environ(), Files: map[string]string{}, User: []int{os.Getuid(), os.Getgid()}}
	r.Dir, _ = os.Getwd()
	r.Groups, _ = os.Getgroups()
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/sys/fs/cgroup/") ||
			strings.HasSuffix(target, "/fd") {
			continue // opened by this program's own runtime, or by the listing
		}
		target, _, _ = strings.Cut(target, ":")
		r.Files[e.Name()] = target
	}
	r.Umask = unix.Umask(0)
	status, _ := os.ReadFile("/proc/thread-self/status")
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch key {
		case "SigBlk":
			r.Blocked = value
		case "SigIgn":
			r.Ignored = value
		}
	}
	sid, _ := unix.Getsid(0)
	r.Session, r.Group = sid == os.Getpid(), unix.Getpgrp() == os.Getpid()
	oom, _ := os.ReadFile("/proc/self/oom_score_adj")
	again, err := os.OpenFile("/dev/stdout", os.O_WRONLY, 0)
	if err != nil {
		r.Reopen = err.Error()
	}
	again.Close()
	r.OOM = strings.TrimSpace(string(oom))
	return r
}

// env is one supervisor with a log directory.
type env struct {
	*processes.Local
	t   *testing.T
	dir string
}

func newLocal(t *testing.T, cfg processes.Config) *env {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	l := processes.New(cfg)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // for tasks that run as others
		t.Fatal(err)
	}
	return &env{Local: l, t: t, dir: dir}
}

func (e *env) spec(task, path string, args ...string) drivers.Spec {
	return drivers.Spec{
		Task: task, Path: path, Args: args, Dir: e.dir, Env: []string{"PATH=" + os.Getenv("PATH"), "NOMAD_TASK_NAME=" + task},
		Logs: drivers.LogSpec{Dir: e.dir, MaxFiles: 10, MaxFileBytes: 10 << 20},
	}
}

// shell returns a task that runs a script; $FIFO is a pipe to say things to the test with.
func (e *env) shell(task, script string) drivers.Spec {
	spec := e.spec(task, "/bin/sh", "-c", script)
	spec.Env = append(spec.Env, "FIFO="+filepath.Join(e.dir, "fifo"))
	return spec
}

func (e *env) start(spec drivers.Spec) drivers.ProcessStatus {
	e.t.Helper()
	status, err := e.Start(e.t.Context(), spec)
	must.OK(e.t, err)
	return status
}

func (e *env) wait(task string) interfaces.ExitResult {
	e.t.Helper()
	exit, err := e.Wait(e.t.Context(), task)
	must.OK(e.t, err)
	return exit
}

func (e *env) killTree(task string) int {
	e.t.Helper()
	n, err := e.KillTree(e.t.Context(), proctest.Latest(e.t, e, task))
	must.OK(e.t, err)
	return n
}

// fifo makes the pipe that shell names and opens it at once, so that a task's opening of it never waits.
func (e *env) fifo() *bufio.Reader {
	e.t.Helper()
	return proctest.Fifo(e.t, e.dir)
}

// output returns everything in the files of one stream, in order.
func (e *env) output(stream string) string {
	e.t.Helper()
	paths, _ := filepath.Glob(filepath.Join(e.dir, stream+".*"))
	slices.SortFunc(paths, func(a, b string) int { return len(a)*1000 + strings.Compare(a, b) - len(b)*1000 })
	var all strings.Builder
	for _, path := range paths {
		text := must.Read(e.t, path)
		all.Write(text)
	}
	return all.String()
}

func self() string { path, _ := os.Executable(); return path }

package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/artifacts/source"
	"taskapi/internal/limited"
	"taskapi/internal/proc"
)

// Command is the first argument with which the program is re-executed to fetch artifacts.
const Command = "fetch-artifacts"

// exe is this program, also when its file has been replaced by an upgrade meanwhile.
const exe = "/proc/self/exe"

const (
	// atOnce is how many artifacts of a task are fetched at the same time: Nomad's number.
	atOnce = 3
	// maxReports bounds what the process may report, in bytes: a line in each second for each artifact.
	maxReports = 64 << 20
)

// limits are those of the process, and of each program that it runs. Git and the unpacking of xz and zstd need hundreds
// of megabytes for large archives.
var limits = limited.Limits{Memory: 1 << 30, Seconds: 3600}

// Process says how the process of Run is started.
type Process struct {
	User *syscall.Credential // nil: as we are
	Env  []string
	Read []string // what may be read besides the system's own files; absolute
}

// Run fetches the artifacts of a request, and calls report for each as it goes on. Errors: the process could not be
// started or has ended early; ctx's. What it has left in the stage is removed.
func Run(ctx context.Context, p Process, req Request, report func(Report)) error {
	defer func() {
		if root, err := os.OpenRoot(req.Dirs.Task); err == nil {
			_ = root.RemoveAll(req.Stage)
			_ = root.Close()
		}
	}()
	confine, err := json.Marshal(sandbox{
		Write: []string{req.Dirs.Task, req.Dirs.Shared}, Read: append(p.Read, req.FileDirs...),
		Size: max(req.Limits.Download, req.Limits.Unpacked),
	})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, exe, Command, string(confine))
	cmd.Env = append(p.Env, "GOMEMLIMIT=512MiB", "GODEBUG=containermaxprocs=0")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.User}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // also the programs that it runs
	cmd.WaitDelay = time.Second
	var words limited.Words
	cmd.Stderr = &words
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the process that fetches artifacts: %w", err)
	}
	defer stdin.Close()
	err = json.NewEncoder(stdin).Encode(req) // the pipe stays open: its end ends the process
	reports := json.NewDecoder(io.LimitReader(stdout, maxReports))
	for err == nil {
		var r Report
		if err = reports.Decode(&r); err == nil && r.Index >= 0 && r.Index < len(req.Artifacts) {
			report(r)
		}
	}
	if !errors.Is(err, io.EOF) { // it says nothing sensible any more
		_ = cmd.Cancel() // it may have ended
	}
	ended := cmd.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return explain(cmd.ProcessState, ended, &words)
}

// explain says why the process ended, nil if it has done its work.
func explain(state *os.ProcessState, ended error, said *limited.Words) error {
	if ended == nil {
		return nil
	}
	if what := limits.Exceeded(state, said); what != "" {
		return fmt.Errorf("the process that fetches artifacts needs more than %s", what)
	}
	if words := strings.TrimSpace(said.String()); words != "" {
		return fmt.Errorf("the process that fetches artifacts: %w: %s", ended, words)
	}
	return fmt.Errorf("the process that fetches artifacts: %w", ended)
}

// Main fetches the artifacts of the request on its standard input, and ends early with the input. The program's main
// calls it before anything else when os.Args[1] is Command, with the further arguments, and exits with the returned
// code. With one of them, it gives up its rights and executes the program without it. With more, it executes a guarded
// program.
func Main(args []string) int {
	var err error
	switch {
	case len(args) == 1:
		err = confine(args[0])
	case len(args) > 1 && args[0] == guardCommand:
		err = guarded(args[1], args[2:])
	default:
		err = serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serve() error {
	_ = proc.Undumpable() // a request may hold tokens; a kernel that can't do that is no reason not to fetch
	syscall.Umask(0o022)
	var req Request
	input := json.NewDecoder(os.Stdin)
	if err := input.Decode(&req); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = syscall.Kill(0, syscall.SIGKILL) // the one who started us has ended
	}()
	stage := filepath.Join(req.Dirs.Task, req.Stage)
	unlock, err := lock(filepath.Dir(stage))
	if err != nil {
		return err
	}
	defer unlock()
	if err := removeStale(filepath.Dir(stage)); err != nil {
		return err
	}
	if err := os.Mkdir(stage, 0o700); err != nil {
		return err
	}
	defer removeAll(stage)
	if err := os.Setenv("TMPDIR", stage); err != nil {
		return err
	}
	out := &reporter{encoder: json.NewEncoder(os.Stdout)}
	var all sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i, a := range req.Artifacts {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			out.one(ctx, i, &fetcher{Request: req, artifact: a, stage: filepath.Join(stage, fmt.Sprint(i))})
		})
	}
	all.Wait()
	return nil
}

// reporter writes reports.
type reporter struct {
	mu      sync.Mutex // held while a report is written
	encoder *json.Encoder
}

func (r *reporter) write(report Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.encoder.Encode(report) // the one who reads has ended, and this process is about to
}

// progressPause is the time between two reports about one artifact.
const progressPause = time.Second

// one fetches one artifact, and reports how.
func (r *reporter) one(ctx context.Context, index int, f *fetcher) {
	var received, total atomic.Int64
	f.received = func(n, of int64) {
		received.Add(n)
		total.Store(of)
	}
	done := make(chan struct{})
	var ticks sync.WaitGroup
	ticks.Go(func() {
		tick := time.NewTicker(progressPause)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.write(Report{Index: index, Bytes: received.Load(), Total: total.Load()})
			case <-done:
				return
			}
		}
	})
	var err error
	if f.source, err = source.Parse(f.artifact.Source, f.artifact.Options); err == nil {
		err = f.fetch(ctx)
	}
	close(done)
	ticks.Wait()
	report := Report{Index: index, Done: err == nil, Bytes: received.Load(), Total: total.Load()}
	if err != nil {
		report.Error = f.clean(err)
	}
	r.write(report)
}

// lock waits until no other process fetches for the task: one whose taskapi was killed may be about to end. All who can
// read a directory can hold its lock, so that other users must not be able to read dir.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

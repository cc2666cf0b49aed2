package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"taskapi/internal/load"
)

type environment struct {
	dir    string // short, because the path of a Unix socket has room for 107 bytes
	self   string // this program
	binary string // a copy of the taskapi under test, so that its processes are known by their executable
	bare   string // a copy of this program to be the floor, so that it shares no memory with this one
	made   int    // folders and sockets made so far
	data   string // the data directory of the starts that are measured
	source string // a folder of the module that has the simulator; empty for none

	simulatorBinary string // a program built from source; empty until it is needed
	nomadBinary     string // a copy of Nomad's program; empty for none

	// What the ways of a measurement share; stop ends it.
	serving *pair
	hostile [][]byte // requests of the attack on it
	group   *agent
	peer    *nomad
}

// newEnvironment makes the folder. source is a folder of the module, empty if there is none with a simulator.
func newEnvironment(binary, source string) (*environment, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	dir, err := os.MkdirTemp("/tmp", "bench")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	env := &environment{dir: dir, self: self, binary: filepath.Join(dir, "taskapi"), bare: filepath.Join(dir, "bare"),
		source: source}
	env.data = env.path(".data")
	err = copyFile(env.binary, binary)
	if err == nil {
		err = copyFile(env.bare, self)
	}
	if err != nil {
		env.close()
		return nil, fmt.Errorf("copy the taskapi to measure (run `make build` first), and this program: %w", err)
	}
	return env, nil
}

// build builds the program of a revision, and returns its source and its path.
func (env *environment) build(ctx context.Context, revision string) (source, binary string, err error) {
	archive := env.path(".tar")
	source, binary = env.path(".source"), env.path(".binary")
	if err = execute(ctx,
		[]string{"git", "archive", "--format=tar", "--output", archive, revision},
		[]string{"mkdir", source},
		[]string{"tar", "-x", "-f", archive, "-C", source},
		goBuild(source, binary, "taskapi/cmd/taskapi"),
	); err != nil {
		err = fmt.Errorf("build the revision %q: %w", revision, err)
	}
	return source, binary, err
}

// simulator builds the program that simulates allocations, and returns its path.
func (env *environment) simulator(ctx context.Context) (path string, err error) {
	if env.simulatorBinary == "" {
		path = env.path(".simulator")
		if err := execute(ctx, goBuild(env.source, path, "taskapi/cmd/taskapi/bench/simulator")); err != nil {
			return "", fmt.Errorf("build the simulator: %w", err)
		}
		env.simulatorBinary = path
	}
	return env.simulatorBinary, nil
}

// goBuild is the command that builds a program from a folder of the module as `make build` does.
func goBuild(source, binary, program string) []string {
	return []string{"go", "build", "-C", source, "-trimpath", "-ldflags", "-s -w", "-o", binary, program}
}

func execute(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

func (env *environment) size(context.Context, options) ([]sample, error) {
	info, err := os.Stat(env.binary)
	if err != nil {
		return nil, err
	}
	return []sample{{"size", megabytes, float64(info.Size())}}, nil
}

func (env *environment) stop() (err error) {
	if env.serving != nil {
		env.serving.stopInto(&err)
	}
	if env.group != nil {
		env.group.stopInto(&err)
	}
	if env.peer != nil {
		env.peer.stopInto(&err)
	}
	env.serving, env.hostile, env.group, env.peer = nil, nil, nil, nil
	return err
}

// close ends whatever a failed run left of taskapi and of its tasks, and removes the folder.
func (env *environment) close() {
	for _, pid := range env.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = os.RemoveAll(env.dir)
}

// processes finds taskapi, its keeper and its tasks, and the floor.
func (env *environment) processes() []int {
	pids := append(processesWith("exe", env.dir), processesWith("cwd", env.dir)...)
	slices.Sort(pids)
	return slices.Compact(pids)
}

// cpu returns the CPU time of all these processes; what has ended is not counted.
func (env *environment) cpu() (used time.Duration) {
	for _, pid := range env.processes() {
		used += load.CPUTime(pid)
	}
	return used
}

// path returns a name in the environment's folder that was not used before.
func (env *environment) path(suffix string) string {
	env.made++
	return filepath.Join(env.dir, fmt.Sprintf("%d%s", env.made, suffix))
}

func copyFile(to, from string) error {
	program, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, program, 0o755)
}

type process struct {
	cmd     *exec.Cmd
	output  bytes.Buffer
	started time.Time // just before it was executed
	done    chan struct{}
	err     error // how it ended, once done is closed
}

// start executes a program; it ends with the benchmark at the latest.
func start(path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.WaitDelay = time.Second
	// taskapi's tasks have sessions of their own, too: the kernel shares the processors among sessions.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stopTime is how long a process may take to end after SIGTERM.
const stopTime = 15 * time.Second

// stop ends the process and waits for it. What it printed is complete afterwards.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTime):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return fmt.Errorf("%s did not end within %v of SIGTERM", filepath.Base(p.cmd.Path), stopTime)
}

// stopInto is stop for a defer: a process that doesn't end makes a measurement fail that went well until then.
func (p *process) stopInto(err *error) { *err = errors.Join(*err, p.stop()) }

// until calls try every interval until it reports true, at most for the time given and as long as the process runs.
func (p *process) until(ctx context.Context, what string, d, interval time.Duration, try func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !try() {
		select {
		case <-p.done:
			return fmt.Errorf("wait for %s: the process ended: %w; it printed:\n%s", what, errors.Join(p.err), &p.output)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

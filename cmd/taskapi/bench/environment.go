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

	nomadBinary string // a copy of Nomad's program; empty for none

	// What the ways of a measurement share; stop ends it.
	started []*process // all of a measurement
	group   *agent
	bottom  *floor
	hostile [][]byte // requests of the attack on both
	peer    *nomad
}

// newEnvironment makes the folder.
func newEnvironment(binary string) (*environment, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	dir, err := os.MkdirTemp("/tmp", "bench")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	env := &environment{dir: dir, self: self, binary: filepath.Join(dir, "taskapi"), bare: filepath.Join(dir, "bare")}
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

// build builds the program of a revision as `make build` does, and returns its path.
func (env *environment) build(ctx context.Context, revision string) (binary string, err error) {
	archive, source, binary := env.path(".tar"), env.path(".source"), env.path(".binary")
	for _, args := range [][]string{
		{"git", "archive", "--format=tar", "--output", archive, revision},
		{"mkdir", source},
		{"tar", "-x", "-f", archive, "-C", source},
		{"go", "build", "-C", source, "-trimpath", "-ldflags", "-s -w", "-o", binary, "taskapi/cmd/taskapi"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the revision %q: %s: %w\n%s", revision, strings.Join(args, " "), err, out)
		}
	}
	return binary, nil
}

func (env *environment) size(context.Context, options) ([]sample, error) {
	info, err := os.Stat(env.binary)
	if err != nil {
		return nil, err
	}
	return []sample{{"size", megabytes, float64(info.Size())}}, nil
}

// stop ends what a measurement has started.
func (env *environment) stop() (err error) {
	for _, p := range env.started {
		p.stopInto(&err)
	}
	env.started, env.bottom, env.hostile, env.group, env.peer = nil, nil, nil, nil, nil
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

// start executes a program; it ends with the measurement at the latest.
func (env *environment) start(path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.WaitDelay = time.Second
	// taskapi's tasks have sessions of their own, too: the kernel shares the processors among sessions.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	env.started = append(env.started, p)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stopTime is how long a process may take to end after SIGTERM.
const stopTime = 15 * time.Second

// stopInto ends the process and waits for it. What it printed is complete afterwards. A process that doesn't end makes
// a measurement fail that went well until then.
func (p *process) stopInto(err *error) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopTime):
		_ = p.cmd.Process.Kill()
		<-p.done
		*err = errors.Join(*err, fmt.Errorf("%s did not end within %v of SIGTERM", p.cmd.Path, stopTime))
	}
}

// until calls try every interval until it reports true, as long as the process runs, and at most for startTime.
func (p *process) until(ctx context.Context, what string, interval time.Duration, try func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
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

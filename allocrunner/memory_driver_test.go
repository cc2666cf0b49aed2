package allocrunner_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// memoryPrograms are what tasks of the memory driver may do, by the value of the key program. They return an exit code.
var memoryPrograms = map[string]func(*memoryRun) int{
	"ends well":  func(*memoryRun) int { return 0 },
	"ends badly": func(*memoryRun) int { return 3 },
	"sleeps":     func(r *memoryRun) int { r.say("up"); return 128 + int(r.signal()) },
	"is orderly": func(r *memoryRun) int { r.say("up"); r.signal(); r.say("got INT"); return 7 },
	"is deaf":    func(r *memoryRun) int { r.say("up"); <-r.killed; return 0 },
	"says what hooks give": func(r *memoryRun) int {
		r.say(r.task.Env.Get("GIVEN"), r.task.Env.Get("NOMAD_TASK_NAME"))
		return 128 + int(r.signal())
	},
	"says its signals": func(r *memoryRun) int {
		r.say("up")
		for {
			switch got := r.signal(); got {
			case syscall.SIGINT, syscall.SIGKILL:
				return 0
			default:
				r.say(fmt.Sprint("got ", got))
			}
		}
	},
}

// memoryDriver runs tasks that are functions of this program. They outlive their runners, as processes do.
type memoryDriver struct {
	mu     sync.Mutex            // guards the fields below
	latest map[string]*memoryRun // by allocation and task
	starts int
	given  []drivers.Task // what each Start got
}

func newMemoryDriver() *memoryDriver {
	return &memoryDriver{latest: map[string]*memoryRun{}}
}

func (*memoryDriver) Name() string { return "memory" }

func (*memoryDriver) Capabilities() drivers.Capabilities {
	return drivers.Capabilities{Mounts: true, Devices: true, Network: true}
}

func (d *memoryDriver) Fingerprint() drivers.Fingerprint {
	return drivers.Fingerprint{Attributes: map[string]string{"driver.memory.version": "1"}}
}

func (d *memoryDriver) Validate(config map[string]any) error {
	program, _ := config["program"].(string)
	if memoryPrograms[program] == nil || len(config) > 1 {
		return fmt.Errorf("program is %q: it must be one of those in memoryPrograms", program)
	}
	return nil
}

func (d *memoryDriver) Start(_ context.Context, task drivers.Task) (drivers.Run, error) {
	config, err := task.Env.EvalConfig(task.Task.Config)
	if err == nil {
		err = d.Validate(config)
	}
	if err != nil {
		return nil, &drivers.ConfigError{Err: err}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key := task.AllocID + " " + task.Dir.Dir
	if old := d.latest[key]; old != nil && old.running() {
		return nil, fmt.Errorf("a second copy of task %q is started", task.Task.Name)
	}
	out, err := os.OpenFile(filepath.Join(task.Logs.Dir, task.Task.Name+".stdout.0"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, &drivers.StartError{Reason: err.Error(), Err: err}
	}
	d.starts++
	d.given = append(d.given, task)
	r := &memoryRun{
		number: d.starts, task: task, out: out, signals: make(chan syscall.Signal, 1), killed: make(chan struct{}),
		done: make(chan struct{}),
	}
	d.latest[key] = r
	go r.run(memoryPrograms[config["program"].(string)])
	return r, nil
}

func (d *memoryDriver) Recover(_ context.Context, task drivers.Task, _ interfaces.Handle) (drivers.Run, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.latest[task.AllocID+" "+task.Dir.Dir]; r != nil {
		return r, nil
	}
	return nil, drivers.ErrNoRun
}

// started returns how many tasks have been started.
func (d *memoryDriver) started() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.starts
}

// memoryRun is one run of a task.
type memoryRun struct {
	number  int
	task    drivers.Task
	out     *os.File
	signals chan syscall.Signal
	killing sync.Once
	killed  chan struct{} // closed by kill
	done    chan struct{} // closed at the end
	exit    interfaces.ExitResult
}

var (
	_ drivers.Signaler = (*memoryRun)(nil)
	_ drivers.Executor = (*memoryRun)(nil)
	_ drivers.Measurer = (*memoryRun)(nil)
)

func (r *memoryRun) run(program func(*memoryRun) int) {
	defer close(r.done)
	defer r.out.Close()
	r.exit.ExitCode = program(r)
	select {
	case <-r.killed:
		r.exit.ExitCode = 137
	default:
	}
	r.exit.At = time.Now()
	if r.exit.ExitCode > 128 {
		r.exit.Signal = r.exit.ExitCode - 128
	}
}

// signal waits for the next signal, or for a kill.
func (r *memoryRun) signal() syscall.Signal {
	select {
	case signal := <-r.signals:
		return signal
	case <-r.killed:
		return syscall.SIGKILL
	}
}

func (r *memoryRun) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

func (r *memoryRun) say(words ...string) { _, _ = fmt.Fprintln(r.out, strings.Join(words, " ")) }

func (r *memoryRun) Handle() interfaces.Handle {
	return interfaces.Handle("run " + strconv.Itoa(r.number))
}

func (r *memoryRun) Inspect(context.Context) (drivers.Status, error) {
	if r.running() {
		return drivers.Status{Details: map[string]string{"run": strconv.Itoa(r.number)}}, nil
	}
	return drivers.Status{Exit: &r.exit}, nil
}

func (r *memoryRun) Wait(ctx context.Context) (interfaces.ExitResult, error) {
	select {
	case <-r.done:
		return r.exit, nil
	case <-ctx.Done():
		return interfaces.ExitResult{}, ctx.Err()
	}
}

func (r *memoryRun) Signal(_ context.Context, signal syscall.Signal) error {
	if !r.running() {
		return drivers.ErrNotRunning
	}
	select {
	case r.signals <- signal:
	default: // one is pending
	}
	return nil
}

func (r *memoryRun) Stop(ctx context.Context, signal syscall.Signal, timeout time.Duration) error {
	if signal == syscall.SIGKILL {
		timeout = 0
	} else {
		_ = r.Signal(ctx, signal) // it may have ended
	}
	select {
	case <-r.done:
	case <-time.After(timeout):
		_, _ = r.Destroy(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (r *memoryRun) Destroy(context.Context) (int, error) {
	r.killing.Do(func() { close(r.killed) })
	<-r.done
	return 0, nil
}

// Exec does what each shell script of the tests of life cycles does: it copies its input, says the task's COLOUR, and
// exits with the code at the script's end.
func (r *memoryRun) Exec(ctx context.Context, task drivers.Task, program drivers.Program) (drivers.ExecResult, error) {
	if !r.running() {
		return drivers.ExecResult{}, interfaces.ErrTaskNotRunning
	}
	script := program.Command[len(program.Command)-1]
	code, _ := strconv.Atoi(script[strings.LastIndex(script, " ")+1:])
	result := drivers.ExecResult{Exit: interfaces.ExitResult{ExitCode: code, At: time.Now()},
		Output: []byte(task.Env.Get("COLOUR") + "\n")}
	if len(program.Files) == 0 {
		return result, ctx.Err()
	}
	program.Started()
	_, err := io.Copy(program.Files[1], program.Files[0])
	_, _ = program.Files[1].Write(result.Output)
	for _, f := range program.Files {
		f.Close()
	}
	return drivers.ExecResult{Exit: result.Exit}, err
}

func (r *memoryRun) Stats(context.Context) (*api.TaskResourceUsage, error) {
	return &api.TaskResourceUsage{
		ResourceUsage: &api.ResourceUsage{
			MemoryStats: &api.MemoryStats{RSS: 42 << 20, Measured: []string{"RSS"}},
			CpuStats:    &api.CpuStats{Percent: 1, Measured: []string{"Percent"}},
		},
		Timestamp: time.Now().UnixNano(),
	}, nil
}

// plainRun has none of the abilities that a run may have.
type plainRun struct{ drivers.Run }

// plainDriver is the memory driver without what it is capable of.
type plainDriver struct{ *memoryDriver }

func (plainDriver) Capabilities() drivers.Capabilities { return drivers.Capabilities{} }

func (d plainDriver) Start(ctx context.Context, task drivers.Task) (drivers.Run, error) {
	run, err := d.memoryDriver.Start(ctx, task)
	return plainRun{run}, err
}

// inMemory returns a task of the memory driver.
func inMemory(name, program string, edits ...func(*api.Task)) *api.Task {
	t := api.NewTask(name, "memory").SetConfig("program", program)
	for _, edit := range edits {
		edit(t)
	}
	return t
}

// givenTo returns what the driver's only start got.
func (d *memoryDriver) givenTo(t *testing.T) drivers.Task {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.given) != 1 {
		t.Fatalf("%d starts, want one", len(d.given))
	}
	return d.given[0]
}

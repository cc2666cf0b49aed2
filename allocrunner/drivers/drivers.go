// Package drivers holds what a task driver is: it reads the config block of a task and builds the Spec of the process that the keeper
// starts. A driver starts nothing itself, and keeps no state. The environment of a task comes from package taskenv.
package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
)

// Driver builds the processes of the tasks that name it. Its methods are safe for concurrent use.
type Driver interface {
	// Name is what a task's driver attribute says.
	Name() string

	// Capabilities says what tasks of this driver may have.
	Capabilities() Capabilities

	// Fingerprint says what the driver finds on this machine. It is called often and must not wait: what takes time is remembered.
	Fingerprint() Fingerprint

	// Validate finds what is wrong with a config block as the job file has it. Text with a ${reference} has its value only when the task
	// starts, so any value that it may get is right. The error names the key and what would be right.
	Validate(config map[string]any) error

	// Build returns the process of a task that is about to start, but for Task and Logs. It is called for each start. Errors:
	// *ConfigError for a config that no further attempt will make right, *StartError for what another may find otherwise.
	Build(ctx context.Context, task Task) (Spec, error)
}

// Precheck is implemented by a driver that can say before a task starts what the machine lacks for it.
type Precheck interface {
	// Missing returns what is missing, in words, empty for nothing or for what is known only at the start.
	Missing(task Task) string
}

// Fingerprint is what a driver finds on a machine.
type Fingerprint struct {
	Attributes map[string]string // of the node, such as "driver.docker.version"; a job's ${attr.NAME} refers to them
	Problem    string            // why no task can be started here now, and what would help; empty when one can
}

// Capabilities are what a driver can do besides running a task.
type Capabilities struct {
	Exec    bool // runs programs beside a task's process: Task.Exec
	Mounts  bool // gives a task what Task.Mounts names
	Devices bool // gives a task what Task.Devices names
}

// Task is a task that is about to start: its directory is there, and its prestart hooks have run.
type Task struct {
	Task *api.Task
	Dir  interfaces.TaskDir
	User interfaces.User

	// Env is the task's environment with what the hooks added. A driver whose tasks see other paths makes another of it with WithTask.
	Env *taskenv.Env

	// Mounts and Devices are what the hooks want the task to have. They are empty unless the driver is capable of them.
	Mounts  []interfaces.Mount
	Devices []interfaces.Device

	// Exec is a program, with its arguments, to run beside the task's process in place of the task itself; nil for the task.
	Exec []string
}

// Spec is one process to start. A supervisor refuses what it can't honour.
type Spec struct {
	Task string   // the task's name, unique in the allocation; the runner sets it
	Path string   // absolute path of the program
	Args []string // without the program's own name
	Env  []string // KEY=value, the whole environment
	Dir  string   // working directory
	User interfaces.User
	Logs LogSpec // the runner sets it

	// OOMScoreAdj is added to the process's badness when the kernel looks for a victim, 0 to 1000; 0 leaves it as it is.
	OOMScoreAdj int

	// Files are the process's standard input, output and error in the place of /dev/null and its logs; empty for those. They stay the
	// caller's to close. With TTY the first is a terminal, which becomes the process's controlling one. The runner sets them.
	Files []*os.File `json:"-"`
	TTY   bool       `json:",omitempty"`

	Mounts     []interfaces.Mount  `json:",omitempty"`
	Devices    []interfaces.Device `json:",omitempty"`
	Limits     Limits              `json:",omitzero"`
	Namespaces []Namespace         `json:",omitempty"`
}

// Limits bound what a process and its descendants may take together; 0 is no limit.
type Limits struct {
	MemoryBytes int64
	CPUMillis   int64 // thousandths of a core
	PIDs        int64
}

// Namespace is a Linux namespace that the process is to have of its own, or to join.
type Namespace struct {
	Kind string // as in /proc/PID/ns: "mnt", "net", "pid", ...
	Path string // of the one to join; empty for a new one
}

// LogSpec says where a process's output goes.
type LogSpec struct {
	Dir          string // the allocation's log directory
	Disabled     bool   // no files: output is thrown away
	MaxFiles     int    // kept for each stream
	MaxFileBytes int64
}

// StartError is a process that could not be started: Reason is for people, and says what to do. It wraps errors.ErrUnsupported for what
// this machine, or the driver, can never do.
type StartError struct {
	Reason string
	Err    error
}

func (e *StartError) Error() string { return e.Reason }
func (e *StartError) Unwrap() error { return e.Err }

// ConfigError is a task's config block that can't work however often it is tried.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return fmt.Sprintf("failed to parse config: %v", e.Err) }
func (e *ConfigError) Unwrap() error { return e.Err }

// UnknownError is a driver that there is not.
type UnknownError struct {
	Name  string
	Known []string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("the driver %q is not here; there is: %s", e.Name, strings.Join(e.Known, ", "))
}

// Registry is the drivers that there are. Its zero value has none. It never changes, and is safe for concurrent use.
type Registry struct{ byName map[string]Driver }

// NewRegistry returns a registry of drivers, each of a name of its own.
func NewRegistry(list ...Driver) *Registry {
	r := &Registry{byName: make(map[string]Driver, len(list))}
	for _, d := range list {
		if _, taken := r.byName[d.Name()]; taken {
			panic(fmt.Sprintf("drivers: there are two of the name %q", d.Name()))
		}
		r.byName[d.Name()] = d
	}
	return r
}

// Names returns the drivers' names, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.byName)) }

// Fingerprints returns what each driver finds on this machine, by the driver's name.
func (r *Registry) Fingerprints() map[string]Fingerprint {
	all := make(map[string]Fingerprint, len(r.byName))
	for name, d := range r.byName {
		all[name] = d.Fingerprint()
	}
	return all
}

// Attributes returns the node attributes of the drivers. "driver.NAME" is "1" for each that can start tasks.
func (r *Registry) Attributes() map[string]string {
	all := map[string]string{}
	for name, found := range r.Fingerprints() {
		maps.Copy(all, found.Attributes)
		if found.Problem == "" {
			all["driver."+name] = "1"
		}
	}
	return all
}

// Get returns the driver of a name. Errors: *UnknownError.
func (r *Registry) Get(name string) (Driver, error) {
	if d, ok := r.byName[name]; ok {
		return d, nil
	}
	return nil, &UnknownError{Name: name, Known: r.Names()}
}

// Build returns the process of a task from the driver that the task names. Besides that driver's errors and Get's, there is a *StartError
// for what the driver is not capable of.
func (r *Registry) Build(ctx context.Context, task Task) (Spec, error) {
	d, err := r.Get(task.Task.Driver)
	if err != nil {
		return Spec{}, err
	}
	can := d.Capabilities()
	for _, lack := range []struct {
		what string
		is   bool
	}{
		{"a mount: give the task the machine's own path", len(task.Mounts) > 0 && !can.Mounts},
		{"a device", len(task.Devices) > 0 && !can.Devices},
		{"another program beside its process", len(task.Exec) > 0 && !can.Exec},
	} {
		if lack.is {
			return Spec{}, &StartError{Reason: fmt.Sprintf("the driver %q can't give a task %s", d.Name(), lack.what), Err: errors.ErrUnsupported}
		}
	}
	return d.Build(ctx, task)
}

package drivers

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/proctree"
)

// This file is for drivers whose tasks are processes of this machine. A Supervisor's arguments and results are plain
// data, so the processes' parent can be this program or another one.

// The closed set of errors that a Supervisor returns besides *StartError, wrapped with the operation and the task.
var (
	// ErrNotRunning: the process has ended, or there was none.
	ErrNotRunning = errors.New("process not running")
	// ErrRunning: the task's process still runs, or is being started.
	ErrRunning = errors.New("process already running")
	// ErrClosed: the supervisor has been closed.
	ErrClosed = errors.New("supervisor closed")
	// ErrLost: the processes' parent was killed, and its processes with it. How they ended is unknown.
	ErrLost = errors.New("the keeper was killed")
	// ErrTooManyExecs: no more programs with files of the caller may run at a time.
	ErrTooManyExecs = errors.New("too many interactive programs")
	// ErrReplaced: somebody else controls the processes now.
	ErrReplaced = errors.New("another client controls the keeper now")
)

// Spec is one process to start.
type Spec struct {
	Task string   // the task's name, unique in the allocation
	Path string   // absolute path of the program
	Args []string // without the program's own name
	Env  []string // KEY=value, the whole environment
	Dir  string   // working directory
	User interfaces.User
	Logs LogSpec

	// OOMScoreAdj is added to the process's badness when the kernel looks for a victim, 0 to 1000; 0 leaves it as it
	// is, unless it is negative.
	OOMScoreAdj int

	// NetBindService gives a process of a user other than root CAP_NET_BIND_SERVICE, as an ambient capability. The
	// process runs without it where the system forbids that.
	NetBindService bool `json:",omitempty"`

	Limits proctree.Limits `json:",omitzero"` // of all processes of the task together

	// Notify gives the process a socket, in NOTIFY_SOCKET, on which the processes of the task say that they are ready
	// and alive (sd_notify(3)).
	Notify bool `json:",omitempty"`

	// Listen are the sockets that the process gets at descriptor 3 and up (sd_listen_fds(3)). They are kept for the
	// task's next process.
	Listen []Listener `json:",omitempty"`

	// Files are the process's standard input, output and error. If empty, the process gets /dev/null and its logs
	// instead. The caller closes them. With TTY the first is a terminal, which becomes the process's controlling one.
	Files []*os.File `json:"-"`
	TTY   bool       `json:",omitempty"`
}

// Shorten returns a short address that leads to a socket's path, and a function that removes the address again.
type Shorten func(path string) (addr string, remove func() error, err error)

// Listener is a socket on which a task listens.
type Listener struct {
	Name    string // in LISTEN_FDNAMES
	Network string // tcp or udp
	HostIP  string
	Port    int
}

// HeldSocket is a socket that is kept for the next processes of tasks.
type HeldSocket struct {
	Listener
	Tasks []string
}

// CloseFiles closes the Files of a spec.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// ProcessStatus is a process as its parent sees it. Exit is nil while it runs.
type ProcessStatus struct {
	Task      string
	UID       uint32 `json:",omitempty"` // the user that it was started as; always 0 in the records of older keepers
	PID       int
	Start     uint64 `json:",omitempty"` // clock ticks after boot, as a proc.Identity has it; 0 when it is not known
	StartedAt time.Time
	NoCgroup  string  `json:",omitempty"` // why it runs in no cgroup of its own, empty when it does
	Unlimited string  `json:",omitempty"` // why its limits are not enforced, empty when they are
	Notice    *Notice `json:",omitempty"` // nil for a process without Spec.Notify
	Exit      *interfaces.ExitResult
}

// Notice is what a process with Spec.Notify, and those below it, have said.
type Notice struct {
	Seq      uint64 // grows with each change of the fields below but Silent; never 0
	Ready    bool   `json:",omitempty"`
	Stopping bool   `json:",omitempty"` // the process has begun to end by itself
	Trigger  bool   `json:",omitempty"` // it says that it is as good as dead
	Status   string `json:",omitempty"` // a line for people, made fit for a terminal

	// Silent is the time since the latest sign of life, of which READY=1 is the first; 0 before that.
	Silent time.Duration `json:",omitempty"`
}

// ID returns the process's ID.
func (s ProcessStatus) ID() ProcessID { return ProcessID{s.Task, ProcessRun{s.PID, s.StartedAt}} }

// ProcessID names one process of a task, and no later process of the same task, so a late request never reaches the
// wrong process.
type ProcessID struct {
	Task string
	ProcessRun
}

// ProcessRun tells one process of a task from the next.
type ProcessRun struct {
	PID       int
	StartedAt time.Time
}

// ExecSpec is a program to run beside a task's process, such as a script check. Its Logs are ignored. Exec always
// closes its Files, which an interactive program has.
type ExecSpec struct {
	Spec

	// MaxOutput is how many bytes of the output of a program without Files are kept, at most MaxExecOutput; the rest is
	// read and thrown away.
	MaxOutput int

	// Started is called once, when a program with Files runs, before Exec returns; nil for none. It must not block.
	Started func()
}

// MaxInteractive is how many programs with files of the caller may run at a time. They last as long as a user likes, so
// neither other programs nor script checks wait for them.
const MaxInteractive = 32

// MaxExecOutput bounds ExecSpec.MaxOutput: some hundred times what a check shows, and not enough to fill a keeper's
// memory.
const MaxExecOutput = 256 << 10

// ExecResult is the result and the output of such a program.
type ExecResult struct {
	Exit      interfaces.ExitResult
	Output    []byte // the first MaxOutput bytes of standard output and error, as they came
	Truncated bool   // there were more
}

// Supervisor is the parent of the allocation's processes. It has at most one process for each task at a time.
// All methods are safe for concurrent use.
type Supervisor interface {
	// Start starts the process in a session of its own. It first kills the processes that an earlier process of the
	// task has left. Errors: *StartError when the process can't be started, ErrRunning, ErrClosed, ErrLost.
	Start(ctx context.Context, spec Spec) (ProcessStatus, error)

	// Wait waits for the end of the task's latest process and returns its result. The last output may not be in the log
	// files yet: KillTree waits for it. Errors: ErrNotRunning when the task never had a process, ErrLost, or ctx's
	// error.
	Wait(ctx context.Context, task string) (interfaces.ExitResult, error)

	// Exec runs a program beside the task's process, in a session of its own and in the task's cgroup if it has one.
	// The program has the task's descriptors, except for its output, which is collected. Exec returns when the program
	// and all processes that it left behind are gone. They are killed when ctx ends, and with the task. Without
	// cgroups, a process that leaves the session ends with the task at the latest. A bounded number of programs run at
	// a time: others wait, and those with Files are refused. Errors: ErrNotRunning when the task has no process or its
	// tree is killed meanwhile, ErrTooManyExecs, *StartError, ErrClosed, ErrLost, ctx's (with the output so far).
	Exec(ctx context.Context, spec ExecSpec) (ExecResult, error)

	// Signal sends sig only to that process of a task. Errors: ErrNotRunning if it has ended, even if the task runs
	// another process by now; ErrLost.
	Signal(ctx context.Context, process ProcessID, sig syscall.Signal) error

	// Unlisten closes the sockets that are kept for the task's next process, because there will be none. Those of a
	// process that runs are its own. Errors: ErrClosed, ErrLost, ctx's.
	Unlisten(ctx context.Context, task string) error

	// Notice returns what a process with Spec.Notify has said, as soon as that is something else than at the time of
	// seen, which is the Seq of an earlier Notice, or 0. Errors: ErrNotRunning if the process has ended or does not
	// notify; ErrLost, ctx's.
	Notice(ctx context.Context, process ProcessID, seen uint64) (Notice, error)

	// KillTree sends SIGKILL to the process and its whole tree: its session, process group and descendants. It returns
	// when the tree is empty and its output is in the log files, with the number of processes besides the root process
	// that had to be killed. An empty tree is no error. Errors: ErrNotRunning if the task has had another process
	// since, whose start has already killed this tree; ErrLost; ctx's error if processes still exist (for instance
	// stuck in the kernel).
	KillTree(ctx context.Context, process ProcessID) (leftover int, err error)

	// List returns the latest process of every task that had one, ordered by task.
	List(ctx context.Context) ([]ProcessStatus, error)

	// Found returns a task's latest process from before this Supervisor was made. It does not wait, and the process may
	// have ended since.
	Found(task string) (ProcessStatus, bool)

	// Close ends the supervisor; processes that still run are killed with their trees. It waits for its goroutines.
	Close() error
}

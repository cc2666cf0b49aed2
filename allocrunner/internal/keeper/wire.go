package keeper

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/proc"
)

// version is the version of the protocol. A keeper survives upgrades of the program, so after the first release a newer
// client must still speak the earlier versions.
const version = 3

// maxFrame bounds a message, with room to spare. The longest message is a Start with the largest arguments and
// environment that the kernel takes: 2 MiB with the usual stack limit, and a third more in base64.
const maxFrame = 8 << 20

// A connection carries frames: four bytes of length, big endian, then a JSON object. It begins with one hello from each
// side. Then the client sends requests and the keeper answers each, in any order. A request with op "cancel" cancels
// the one of the same ID and is not answered itself. An exec with files has two answers: the first says that the
// program runs. An answer with ID 0 is the keeper's last message on the connection.
type hello struct {
	Version int
	Keeper  proc.Identity `json:",omitzero"` // from the keeper
}

// The operations: those of drivers.Supervisor, and cancel.
const (
	opStart    = "start"
	opWait     = "wait"
	opExec     = "exec"
	opSignal   = "signal"
	opKillTree = "killtree"
	opNotice   = "notice"
	opUnlisten = "unlisten"
	opList     = "list"
	opClose    = "close"
	opKeepOpen = "keepopen"
	opExpire   = "expire"
	opSockets  = "sockets"
	opAdopt    = "adopt"
	opCancel   = "cancel"
)

type request struct {
	ID   uint64
	Op   string
	Task string `json:",omitempty"`

	Process drivers.ProcessRun `json:",omitzero"` // signal, killtree, notice: selects one of the task's processes

	Signal syscall.Signal `json:",omitempty"`
	Spec   *wireSpec      `json:",omitempty"` // start, exec

	Seen uint64 `json:",omitempty"` // notice

	End time.Duration `json:",omitempty"` // expire: since the machine's start

	MaxOutput int  `json:",omitempty"` // exec
	TTY       bool `json:",omitempty"` // exec

	Sockets []drivers.HeldSocket `json:",omitempty"` // adopt: one for each file

	// how many files come with the request: three or none with start and exec, up to maxFiles with keepopen and adopt
	Files int `json:",omitempty"`
}

type answer struct {
	ID       uint64
	Err      *wireError              `json:",omitempty"`
	Status   *drivers.ProcessStatus  `json:",omitempty"` // start
	Exit     *interfaces.ExitResult  `json:",omitempty"` // wait
	Leftover int                     `json:",omitempty"` // killtree
	Notice   *drivers.Notice         `json:",omitempty"` // notice
	List     []drivers.ProcessStatus `json:",omitempty"` // list
	Exec     *drivers.ExecResult     `json:",omitempty"` // exec, with an error, too
	// exec with files: the program runs, and another answer follows
	Started bool   `json:",omitempty"`
	Cgroup  string `json:",omitempty"` // start, list: Record's

	Sockets []drivers.HeldSocket `json:",omitempty"` // sockets: a file comes with each
}

// wireSpec is a drivers.Spec whose strings survive JSON also when they are no UTF-8.
type wireSpec struct {
	drivers.Spec
	Path, Dir []byte
	Args, Env [][]byte
}

func packSpec(s drivers.Spec) *wireSpec {
	w := &wireSpec{Spec: s, Path: []byte(s.Path), Dir: []byte(s.Dir), Args: recode[[]byte](s.Args),
		Env: recode[[]byte](s.Env)}
	w.Spec.Args, w.Spec.Env = nil, nil
	return w
}

func (w *wireSpec) unpack() drivers.Spec {
	s := w.Spec
	s.Path, s.Dir, s.Args, s.Env = string(w.Path), string(w.Dir), recode[string](w.Args), recode[string](w.Env)
	return s
}

// recode converts the elements of a list.
func recode[To, From string | []byte](list []From) []To {
	out := make([]To, len(list))
	for i, v := range list {
		out[i] = To(v)
	}
	return out
}

// wireError is an error as text, with the errors that errors.Is and errors.As must find in it.
type wireError struct {
	Kind   string // of kinds, "start", or empty
	Text   string
	Reason string        `json:",omitempty"` // of a drivers.StartError
	Errno  syscall.Errno `json:",omitempty"`
}

var kinds = map[string]error{
	"notrunning": drivers.ErrNotRunning,
	"running":    drivers.ErrRunning,
	"closed":     drivers.ErrClosed,
	"lost":       drivers.ErrLost,
	"replaced":   ErrReplaced,
	"busy":       ErrBusy,
	"expired":    ErrExpired,
	"execs":      drivers.ErrTooManyExecs,
	"canceled":   context.Canceled,
	"deadline":   context.DeadlineExceeded,
}

func packError(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Text: err.Error()}
	_ = errors.As(err, &w.Errno) // stays zero without one
	if start, ok := errors.AsType[*drivers.StartError](err); ok {
		w.Kind, w.Reason = "start", start.Reason
		return w
	}
	for kind, known := range kinds {
		if errors.Is(err, known) {
			w.Kind = kind
		}
	}
	return w
}

func (w *wireError) unpack() error {
	if w == nil {
		return nil
	}
	var inner error
	if w.Errno != 0 {
		inner = w.Errno
	}
	if w.Kind == "start" {
		return &remoteError{text: w.Text, inner: &drivers.StartError{Reason: w.Reason, Err: inner}}
	}
	if known := kinds[w.Kind]; known != nil {
		inner = known
	}
	return &remoteError{text: w.Text, inner: inner}
}

// remoteError reads as it did in the keeper.
type remoteError struct {
	text  string
	inner error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.inner }

// readFrame reads one message.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("a message of %d bytes is longer than %d", n, maxFrame)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// frameWriter writes whole messages from many goroutines.
type frameWriter struct {
	mu sync.Mutex // held while writing, which keeps frames whole
	w  io.Writer
	// how long the other side may take for one message, not for all waiting messages; 0 for any time, else w is a
	// net.Conn
	most time.Duration
}

func (f *frameWriter) write(v any) error { return f.writeWith(v, nil) }

// writeWith writes a message with files, over a *net.UnixConn.
func (f *frameWriter) writeWith(v any, files []*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxFrame {
		return fmt.Errorf("a message of %d bytes is longer than %d", len(body), maxFrame)
	}
	body = append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.most > 0 {
		// fails on a closed connection only, which writing shows
		_ = f.w.(net.Conn).SetWriteDeadline(time.Now().Add(f.most))
	}
	if len(files) > 0 {
		fds := []int{}
		for _, file := range files {
			fds = append(fds, int(file.Fd()))
		}
		n, _, err := f.w.(*net.UnixConn).WriteMsgUnix(body, unix.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
		body = body[n:]
	}
	_, err = f.w.Write(body)
	return err
}

// Package notify reads what the processes of a task say about it in systemd's protocol, sd_notify(3): datagrams to a
// Unix socket, with lines such as READY=1, STATUS=..., WATCHDOG=1 and STOPPING=1. It decides nothing.
//
// It promises that only the kernel's word about a sender counts: the sender's user, and its process, of which the
// caller says whether it is the task's; that a flood costs a bounded share of time, and no memory; that files that come
// with a message are closed, in the order of the messages, so that a sender can wait for that (BARRIER=1).
package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"taskapi/allocrunner/drivers"
)

// dirName is the directory of the sockets in the allocation directory. No task can have a name with a dot before it.
const dirName = ".notify"

// maxPath is how long a path in a socket address can be.
const maxPath = 107

// maxName is how long the name of a socket can be. Any short address has room for it.
const maxName = 40

// maxMessage is how long a message can be, as in systemd; a longer one is dropped.
const maxMessage = 4 << 10

// statusPause is the least time between two status texts that are made known. Only the latest of those between is.
const statusPause = time.Second

// A socket takes burst messages at once, and from then on one each messagePause. Senders wait then, by the kernel's
// queue of a few messages.
const (
	burst        = 200
	messagePause = 5 * time.Millisecond
)

// mostAtOnce is how many messages Current reads at most before it answers.
const mostAtOnce = 600 // more than the kernel's longest usual queue (net.unix.max_dgram_qlen)

// Config configures a Socket. All fields but Shorten are required.
type Config struct {
	Dir      string // the allocation directory
	Task     string
	UID, GID uint32 // the task's
	Logger   *slog.Logger

	// Shorten returns a short address of a path that has no room in an address, and a function that removes the address
	// again. It may be nil.
	Shorten drivers.Shorten
}

// Socket is the socket of one run of a task.
type Socket struct {
	cfg  Config
	path string
	addr string       // the path, or a short one that leads there
	drop func() error // removes the short address
	file *os.File     // in the runtime's poller
	has  func(pid int) (has, known bool)
	done chan struct{}

	receiving sync.Mutex // held while a message is read and applied, so that messages stay in their order
	buffers   struct{ text, control []byte }

	mu        sync.Mutex // guards all below
	notice    drivers.Notice
	alive     time.Time     // the latest sign of life; zero before the task is ready
	changed   chan struct{} // closed, and replaced, when notice.Seq changes
	published time.Time     // when the latest status text was made known
	waiting   bool          // a status text is to be made known by a timer
	closed    bool
	refused   bool // a message was refused, which is logged once
}

// Path returns where the socket of a task is.
func Path(dir, task string) string { return filepath.Join(dir, dirName, fileName(task)) }

// fileName returns the name of a task's socket: the task's own name or, if that is too long for a short address, a
// digest of the name. No task's name begins with a dot, so the digest is no other task's name.
func fileName(task string) string {
	if len(task) <= maxName {
		return task
	}
	sum := sha256.Sum256([]byte(task))
	return "." + hex.EncodeToString(sum[:maxName/2-1])
}

// Listen makes a new socket in place of an earlier run's. Only the task's user can connect to it. Nothing is read
// before Start. Errors: *drivers.StartError.
func Listen(cfg Config) (*Socket, error) {
	s := &Socket{cfg: cfg, path: Path(cfg.Dir, cfg.Task), done: make(chan struct{}), changed: make(chan struct{})}
	s.notice.Seq = 1
	s.buffers.text = make([]byte, maxMessage+1)
	// There is no room for files: the kernel closes them. It puts the credentials first.
	s.buffers.control = make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	err := s.listen()
	if err == nil {
		if err = s.shorten(); err != nil {
			s.file.Close()
		}
	}
	if err != nil {
		return nil, &drivers.StartError{Reason: fmt.Sprintf("the task's socket for notifications can't be made: %v", err),
			Err: err}
	}
	return s, nil
}

// shorten sets the address by which the task reaches the socket.
func (s *Socket) shorten() (err error) {
	s.addr, s.drop = s.path, func() error { return nil }
	if len(s.path) <= maxPath {
		return nil
	}
	if s.cfg.Shorten == nil {
		return fmt.Errorf("its path %s has %d bytes, and an address has room for %d: choose a shorter data directory",
			s.path, len(s.path), maxPath)
	}
	s.addr, s.drop, err = s.cfg.Shorten(s.path)
	return err
}

// Start begins to read. has reports whether a process is the task's; known is false if the process has gone.
func (s *Socket) Start(has func(pid int) (has, known bool)) {
	s.has = has
	go s.run()
}

// listen makes the socket in a directory in which nobody else can make anything, so that what has the name is the
// socket.
func (s *Socket) listen() error {
	name := filepath.Base(s.path)
	if err := os.Mkdir(filepath.Dir(s.path), 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	dir, err := os.OpenFile(filepath.Dir(s.path), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	at := int(dir.Fd())
	here := "/proc/self/fd/" + strconv.Itoa(at)
	if err := os.Chmod(here, 0o711); err != nil { // whatever the umask is
		return err
	}
	if err := unix.Unlinkat(at, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return os.NewSyscallError("unlink", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	s.file = os.NewFile(uintptr(fd), s.path)
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1), unix.Fchmod(fd, 0o600))
	if err == nil {
		// The kernel makes the file with the mode of the socket, less the umask.
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrUnix{Name: here + "/" + name}))
	}
	if err == nil && (int(s.cfg.UID) != os.Geteuid() || int(s.cfg.GID) != os.Getegid()) {
		err = os.NewSyscallError("chown", unix.Fchownat(at, name, int(s.cfg.UID), int(s.cfg.GID),
			unix.AT_SYMLINK_NOFOLLOW))
	}
	if err != nil {
		s.file.Close()
	}
	return err
}

// Env returns the variable by which the task finds the socket.
func (s *Socket) Env() string { return "NOTIFY_SOCKET=" + s.addr }

// Close ends the socket, when the run has ended.
func (s *Socket) Close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return
	}
	close(s.done)
	s.file.Close()
	_ = s.drop()          // a link to a directory that is gone is removed later
	_ = os.Remove(s.path) // gone with the allocation directory, perhaps
}

// run reads messages until Close.
func (s *Socket) run() {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return
	}
	limit := rate.NewLimiter(rate.Every(messagePause), burst)
	for {
		received := false
		err := raw.Read(func(fd uintptr) bool {
			received = s.receive(int(fd))
			return received
		})
		if err != nil {
			return
		}
		select {
		case <-time.After(limit.Reserve().Delay()):
		case <-s.done:
			return
		}
	}
}

// receive reads one message, and reports false when there is none.
func (s *Socket) receive(fd int) bool {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	n, oobn, flags, _, err := unix.Recvmsg(fd, s.buffers.text, s.buffers.control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return !errors.Is(err, unix.EAGAIN)
	}
	if flags&unix.MSG_TRUNC != 0 || n > maxMessage {
		s.refuse("it is too long", 0)
		return true
	}
	sender := credentials(s.buffers.control[:oobn])
	if why := s.wrong(sender); why != "" {
		s.refuse(why, sender.Pid)
		return true
	}
	s.apply(parse(string(s.buffers.text[:n])))
	return true
}

// credentials returns the sender's, with process 0 if the kernel does not name it.
func credentials(control []byte) unix.Ucred {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if c, err := unix.ParseUnixCredentials(&m); err == nil {
			return *c
		}
	}
	return unix.Ucred{}
}

// wrong says why a sender may not speak for the task; empty if it may. A process that has gone by now is known by its
// user alone: another process of the same user could also end the task, or write into its memory.
func (s *Socket) wrong(sender unix.Ucred) string {
	if sender.Pid <= 0 {
		return "its sender is of another PID namespace"
	}
	if sender.Uid != s.cfg.UID && sender.Uid != 0 {
		return fmt.Sprintf("its sender is user %d, and the task's is %d", sender.Uid, s.cfg.UID)
	}
	has, known := s.has(int(sender.Pid))
	if !has && (known || sender.Uid != s.cfg.UID) {
		return "its sender is no process of the task"
	}
	return ""
}

func (s *Socket) refuse(why string, pid int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.refused {
		s.refused = true
		s.cfg.Logger.Warn("a notification of the task was dropped; later ones are dropped without a word", "task",
			s.cfg.Task, "reason", why, "sender", pid)
	}
}

// apply changes the notice as the message says.
func (s *Socket) apply(m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	was := s.notice
	s.notice.Ready = was.Ready || m.ready
	s.notice.Stopping = was.Stopping || m.stopping
	s.notice.Trigger = was.Trigger || m.trigger
	if m.alive || m.ready {
		s.alive = now
	}
	if m.status != nil {
		s.notice.Status = *m.status
	}
	urgent := s.notice.Ready != was.Ready || s.notice.Stopping != was.Stopping || s.notice.Trigger != was.Trigger
	if !urgent && s.notice.Status == was.Status || s.closed {
		return
	}
	if early := statusPause - now.Sub(s.published); !urgent && early > 0 {
		if !s.waiting {
			s.waiting = true
			time.AfterFunc(early, s.publishWaiting)
		}
		return
	}
	s.publishLocked(now)
}

func (s *Socket) publishWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting && !s.closed {
		s.publishLocked(time.Now())
	}
}

func (s *Socket) publishLocked(now time.Time) {
	s.waiting, s.published = false, now
	s.notice.Seq++
	close(s.changed)
	s.changed = make(chan struct{})
}

// Current returns what the task has said up to now, and a channel that is closed when there is more. It is called after
// Start.
func (s *Socket) Current() (drivers.Notice, <-chan struct{}) {
	if raw, err := s.file.SyscallConn(); err == nil { // on a busy machine, run may not have come to it
		_ = raw.Control(func(fd uintptr) {
			for n := 0; n < mostAtOnce && s.receive(int(fd)); n++ {
			}
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.notice
	if !s.alive.IsZero() {
		n.Silent = time.Since(s.alive)
	}
	return n, s.changed
}

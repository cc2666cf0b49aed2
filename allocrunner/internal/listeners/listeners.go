// Package listeners keeps listening sockets for tasks. Each process of a task gets the same sockets. While no process
// runs, clients wait in the kernel's queue instead of being refused.
package listeners

import (
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/ports"
)

// Set holds the sockets of an allocation's tasks. Its methods are safe for concurrent use.
type Set struct {
	logger *slog.Logger

	mu     sync.Mutex // guards all below
	held   map[drivers.Listener]*held
	watch  *os.File // an epoll instance, which is ready when a socket was shut down; nil without sockets
	epoll  int      // its descriptor: File.Fd would take it from the runtime's poller
	closed bool
}

// held is a socket, and the tasks that want it.
type held struct {
	file  *os.File
	tasks []string
}

// New makes a Set. It opens nothing.
func New(logger *slog.Logger) *Set { return &Set{logger: logger, held: map[drivers.Listener]*held{}} }

// key returns the parts of a Listener that two tasks must have in common to share a socket.
func key(l drivers.Listener) drivers.Listener {
	l.Name = ""
	return l
}

// Take returns the sockets for a task's next process, in the order of want, and closes the sockets that only the
// process before had. The files stay the Set's. Errors: *drivers.StartError.
func (s *Set) Take(task string, want []drivers.Listener) ([]*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, drivers.ErrClosed
	}
	s.dropLocked(task, want)
	var files []*os.File
	for _, l := range want {
		h, err := s.openLocked(l)
		if err != nil {
			return nil, &drivers.StartError{Reason: "no socket for port " + l.Name + ": " + err.Error(), Err: err}
		}
		if !slices.Contains(h.tasks, task) {
			h.tasks = append(h.tasks, task)
		}
		files = append(files, h.file)
	}
	return files, nil
}

// openLocked returns a socket that works: the held socket, or a new one.
func (s *Set) openLocked(l drivers.Listener) (*held, error) {
	h := s.held[key(l)]
	var broken *os.File
	if h != nil {
		if works(h.file, l.Network) {
			return h, nil
		}
		broken = h.file
		defer s.closeLocked(&held{file: broken})
	}
	file, err := ports.Listen(l.Network, l.HostIP, l.Port, broken)
	if err != nil {
		delete(s.held, key(l))
		return nil, err
	}
	if h == nil {
		h = &held{}
	}
	h.file = file
	s.held[key(l)] = h
	if l.Network == "tcp" {
		s.watchLocked(file)
	}
	return h, nil
}

// works makes a socket as a process finds it first, whatever an earlier process has done, and reports whether that is
// possible.
func works(f *os.File, network string) bool {
	if network != "udp" {
		_, err := ports.ListenAgain(f)
		return err == nil
	}
	poll := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLRDHUP}}
	if n, _ := unix.Poll(poll, 0); n > 0 && poll[0].Revents&unix.POLLRDHUP != 0 {
		return false // shut down, and nothing undoes that
	}
	disconnect(f)
	return true
}

// disconnect makes a UDP socket take datagrams from everybody, if a process has connected it.
func disconnect(f *os.File) {
	if _, err := unix.Getpeername(int(f.Fd())); err != nil {
		return
	}
	var nobody unix.RawSockaddr // of family AF_UNSPEC
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, f.Fd(), uintptr(unsafe.Pointer(&nobody)), unsafe.Sizeof(nobody))
}

// Sockets returns the sockets with copies of their files, which the caller closes. A socket that can't be copied is
// left out.
func (s *Set) Sockets() (list []drivers.HeldSocket, files []*os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l, h := range s.held {
		if f, err := dup(h.file); err == nil {
			list = append(list, drivers.HeldSocket{Listener: l, Tasks: slices.Clone(h.tasks)})
			files = append(files, f)
		}
	}
	return list, files
}

// Adopt keeps copies of another Set's sockets for their tasks, except sockets that this Set has already.
func (s *Set) Adopt(list []drivers.HeldSocket, files []*os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range list {
		if s.closed || i >= len(files) || s.held[key(l.Listener)] != nil {
			continue
		}
		f, err := dup(files[i])
		if err != nil {
			s.logger.Warn("a listening socket of the keeper before could not be kept", "error", err)
			continue
		}
		s.held[key(l.Listener)] = &held{file: f, tasks: slices.Clone(l.Tasks)}
		if l.Network == "tcp" {
			s.watchLocked(f)
		}
	}
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Drop closes the sockets that only this task wants. The task has no further process.
func (s *Set) Drop(task string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(task, nil)
}

func (s *Set) dropLocked(task string, but []drivers.Listener) {
	for k, h := range s.held {
		if slices.ContainsFunc(but, func(l drivers.Listener) bool { return key(l) == k }) {
			continue
		}
		h.tasks = slices.DeleteFunc(h.tasks, func(one string) bool { return one == task })
		if len(h.tasks) == 0 {
			s.closeLocked(h)
			delete(s.held, k)
		}
	}
}

// closeLocked closes a socket, which a process may have as well.
func (s *Set) closeLocked(h *held) {
	if s.watch != nil {
		_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, int(h.file.Fd()), nil) // it may not be watched
	}
	h.file.Close()
}

// Close closes all sockets. It may be called twice.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for k, h := range s.held {
		s.closeLocked(h)
		delete(s.held, k)
	}
	if s.watch != nil {
		s.watch.Close()
		s.watch = nil
	}
}

// watchLocked makes a socket listen again soon after a process has shut it down. A socket that is not watched listens
// again only for the next process.
func (s *Set) watchLocked(f *os.File) {
	if s.watch == nil {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err == nil {
			err = unix.SetNonblock(fd, true) // for the runtime's poller
		}
		if err != nil {
			s.logger.Warn("a listening socket that a task shuts down stays so until the task's next start", "error", err)
			return
		}
		s.watch, s.epoll = os.NewFile(uintptr(fd), "epoll"), fd
		go s.listenAgain(s.watch)
	}
	// No event is asked for, since the kernel reports a hang-up anyhow. A connection wakes nobody here.
	event := unix.EpollEvent{Fd: int32(f.Fd())}
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, int(f.Fd()), &event)
}

// againPause bounds how often a socket that is shut down again and again is opened.
const againPause = 20 * time.Millisecond

// listenAgain waits for sockets that were shut down, until the Set is closed.
func (s *Set) listenAgain(watch *os.File) {
	raw, err := watch.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, 8)
	for {
		err := raw.Read(func(fd uintptr) bool {
			n, err := unix.EpollWait(int(fd), events, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return
		}
		for k, h := range s.held {
			if k.Network != "tcp" {
				continue
			}
			down, err := ports.ListenAgain(h.file)
			if err != nil { // the task's next start opens another one
				_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, int(h.file.Fd()), nil)
			}
			if down || err != nil {
				s.logger.Warn("a task has shut down a listening socket that is kept for it", "address", h.file.Name(),
					"listens again", err == nil, "error", err)
			}
		}
		s.mu.Unlock()
		time.Sleep(againPause)
	}
}

package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/processes"
	"taskapi/internal/peercred"
	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// helloTime bounds how long a new connection may take to say what it is, and an answer to be taken.
const helloTime = 5 * time.Second

// maxRequests bounds what one client may have under way: a wait, a kill and a signal for each of some thousand tasks
// fit.
const maxRequests = 16 << 10

// replaceTime bounds how long a new client waits for the requests of the client before: less than its own
// helloTime.
const replaceTime = 3 * time.Second

// acceptPause keeps a lack of descriptors, which is what Accept fails of, from becoming a tight loop.
const acceptPause = 100 * time.Millisecond

// unwrittenIdle is how long a keeper with neither task nor client stays when it alone knows how its tasks ended, since
// the record can't be written: an operator has that time to make room, or to bring the agent back.
const unwrittenIdle = 10 * time.Minute

// leaveTime bounds the killing of a task's remaining processes while no client is connected.
const leaveTime = 10 * time.Second

// server is a keeper, but for the process around it.
type server struct {
	dir      *os.File      // held, so that nothing is ever written into another directory that took its place
	idle     time.Duration // without task and client, after which it ends when the record is written
	tied     bool          // ends with its client, and all tasks with it
	logger   *slog.Logger
	local    *processes.Local
	self     proc.Identity
	previous previousExits
	wg       sync.WaitGroup

	trims   atomic.Bool   // memory will soon be given back
	changed wake.Signal   // a client or a task came or went
	closed  chan struct{} // a client has closed the keeper
	closes  sync.Once

	writing sync.Mutex // held while the record is written, so that an older one never replaces a newer
	gone    bool       // the directory has been removed; guarded by writing

	unwritten bool // the record could not be written; guarded by writing

	mu     sync.Mutex // guards all below
	client *session   // who controls the keeper, or nil
	sign   proc.Sign  // set while there is a client, for those who want to end this keeper
	had    bool       // there has been one
	files  []*os.File // that stay open as long as the keeper lives
	ended  bool       // no client is taken any more
}

// serve runs until the keeper is closed, or is idle for long enough, or gets a signal to end while it has no client. It
// reports whether the record shall stay.
func (s *server) serve(listener net.Listener, ends <-chan os.Signal) (keep bool) {
	s.wg.Go(func() { s.accept(listener) })
	s.trimSoon()
	keep = s.run(ends)
	listener.Close()
	if err := s.local.Close(); err != nil {
		s.logger.Error("tasks are left running", "error", err)
	}
	s.record()
	s.mu.Lock()
	last := s.client
	s.ended = true
	s.mu.Unlock()
	if last != nil {
		last.end(drivers.ErrLost)
	}
	s.wg.Wait()
	return keep
}

// run waits for a reason to end. It reports whether there may be exits that no client has read.
func (s *server) run(ends <-chan os.Signal) bool {
	timer := time.NewTimer(max(s.idle, startTime)) // who started us is on its way
	defer timer.Stop()
	since := time.Now() // the last time that there was something to stay for
	for first := true; ; first = false {
		s.mu.Lock()
		controlled, abandoned := s.client != nil, s.tied && s.had && s.client == nil
		s.mu.Unlock()
		if abandoned {
			s.logger.Info("the client is gone: the keeper ends with its tasks")
			return true
		}
		if !controlled {
			s.sweep()
		}
		written := s.record()
		idle := !controlled && !s.tasksRun()
		if !idle {
			since = time.Now()
		}
		switch {
		case !idle && written:
			timer.Stop()
		case !first:
			timer.Reset(s.idle) // also to write it then
		}
		select {
		case <-s.changed:
			s.trimSoon()
		case <-s.closed:
			return false
		case <-timer.C:
			if (written || time.Since(since) >= unwrittenIdle) && s.endIdle() {
				s.logger.Info("no task runs and no client comes: the keeper ends")
				return true
			}
		case sig := <-ends:
			s.mu.Lock()
			controlled := s.client != nil
			s.mu.Unlock()
			if controlled {
				s.logger.Info("signal left to the client", "signal", sig.String())
				continue
			}
			s.logger.Warn("the keeper ends with its tasks", "signal", sig.String())
			return true
		}
	}
}

// endIdle ends the taking of clients if there is no reason to stay.
func (s *server) endIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = s.ended || s.client == nil && !s.tasksRun()
	return s.ended
}

func (s *server) tasksRun() bool {
	list, _ := s.local.List(context.Background()) // Local's never fails
	return slices.ContainsFunc(list, func(t drivers.ProcessStatus) bool { return t.Exit == nil })
}

// record writes down what is, and reports whether nothing would be lost with this process. A full disk costs the next
// agent knowledge, nothing else.
func (s *server) record() bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	at := proc.Now() // before the look: who runs by the list did so then
	tasks, _ := s.list(context.Background())
	here, err := identifyDir(s.dir)
	if err == nil {
		err = Record{Keeper: s.self, Dir: here, Cgroup: s.local.CgroupDir(), Tasks: tasks, At: at}.write(s.dir)
	}
	gone := errors.Is(err, os.ErrNotExist) // and nobody will come to read it
	switch {
	case gone && !s.gone:
		s.logger.Warn("the allocation directory has been removed; the tasks go on", "dir", s.dir.Name())
	case err != nil && !gone && !s.unwritten:
		s.logger.Warn("the record can't be written; it is tried again", "error", err)
	}
	s.gone, s.unwritten = gone, err != nil && !gone
	return !s.unwritten
}

func (s *server) accept(listener net.Listener) {
	for number := uint64(1); ; number++ {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.logger.Warn("a client can't be accepted", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		s.wg.Go(func() {
			defer conn.Close()
			if err := s.attend(conn.(*net.UnixConn), number); err != nil {
				s.logger.Warn("client", "error", err)
			}
		})
	}
}

// attend serves the connection that came as the one with this number to its end.
func (s *server) attend(conn *net.UnixConn, number uint64) error {
	peer, err := peercred.Of(conn)
	if err != nil {
		return err
	}
	if peer.UID != uint32(os.Geteuid()) {
		return fmt.Errorf("process %d of user %d may not control this keeper", peer.PID, peer.UID)
	}
	_ = conn.SetDeadline(time.Now().Add(helloTime)) // fails on a closed connection only, which reading shows
	var theirs hello
	if err := readFrame(conn, &theirs); err != nil {
		return fmt.Errorf("hello of process %d: %w", peer.PID, err)
	}
	if theirs.Version != version { // it hears why, and who controls the keeper goes on
		_ = (&frameWriter{w: conn}).write(hello{Version: version})
		return fmt.Errorf("process %d speaks version %d: %w", peer.PID, theirs.Version, ErrVersion)
	}
	c := newSession(s, conn)
	c.number = number
	defer close(c.done)
	if !s.admit(c) {
		return nil // without a hello: who gets one can rely on us
	}
	defer s.leave(c)
	if err := c.out.write(hello{Version: version, Keeper: s.self}); err != nil {
		return fmt.Errorf("hello to process %d: %w", peer.PID, err)
	}
	_ = conn.SetDeadline(time.Time{})
	s.changed.Send()
	return c.serve()
}

// admit makes c the client, and ends the one before: what that has begun, such as a start, is done or given up when the
// new one sends its first request, or it takes very long. It reports false when the keeper is about to end, or when a
// client that came later is there: of those that have waited for a frozen keeper all but the latest have given up.
func (s *server) admit(c *session) bool {
	s.mu.Lock()
	if s.ended || s.client != nil && s.client.number > c.number {
		s.mu.Unlock()
		return false
	}
	last := s.client
	s.client, s.had = c, true
	err := s.sign.Set()
	s.mu.Unlock()
	if err != nil {
		s.logger.Warn("other processes can't see that this keeper has a client", "error", err)
	}
	if last != nil {
		last.end(ErrReplaced)
		select {
		case <-last.done:
		case <-time.After(replaceTime):
		}
	}
	return true
}

// leave: c is no client any more.
func (s *server) leave(c *session) {
	s.mu.Lock()
	if s.client == c {
		s.client = nil
		s.sign.Clear()
	}
	s.mu.Unlock()
	s.changed.Send()
}

// sweep kills what ended tasks have left behind, which a client does otherwise.
func (s *server) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	list, _ := s.local.List(ctx)
	for _, task := range list {
		if task.Exit == nil {
			continue
		}
		n, err := s.local.KillTree(ctx, task.ID())
		if n > 0 || err != nil {
			s.logger.Warn("the task left processes behind", "task", task.Task, "killed", n, "error", err)
		}
	}
}

// keepOpen keeps files open for as long as the keeper lives. One that it has already is closed: each agent gives it
// those of the same locks.
func (s *server) keepOpen(files []*os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		if slices.ContainsFunc(s.files, func(kept *os.File) bool {
			one, err1 := kept.Stat()
			other, err2 := f.Stat()
			return err1 == nil && err2 == nil && os.SameFile(one, other)
		}) {
			f.Close()
			continue
		}
		s.files = append(s.files, f)
	}
}

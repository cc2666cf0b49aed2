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
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/processes"
	"taskapi/internal/peercred"
	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// helloTime bounds how long a new connection may take to send its hello, and how long a client may take to read an
// answer.
const helloTime = 5 * time.Second

// maxRequests bounds one client's requests under way. It is enough for a wait, a kill and a signal for each of some
// thousand tasks.
const maxRequests = 16 << 10

// replaceTime bounds how long a new client waits for the requests of the previous client. It is less than the new
// client's own helloTime.
const replaceTime = 3 * time.Second

// acceptPause is the pause after a failed Accept. Accept fails for lack of descriptors, which must not become a tight
// loop.
const acceptPause = 100 * time.Millisecond

// unwrittenIdle is how long a keeper with neither task nor client stays if the record can't be written, so that only
// the keeper knows how its tasks ended. In that time an operator can make room or restart the agent.
const unwrittenIdle = 10 * time.Minute

// leaveTime bounds the killing of a task's remaining processes while no client is connected.
const leaveTime = 10 * time.Second

// server is a keeper without the process around it.
type server struct {
	dir      *os.File      // kept open, so that nothing is ever written into another directory in its place
	idle     time.Duration // without task and client, after which it ends when the record is written
	tied     bool          // ends with its client, and all tasks with it
	logger   *slog.Logger
	local    *processes.Local
	self     proc.Identity
	previous previousExits
	expiry   expiry
	wg       sync.WaitGroup

	changed wake.Signal   // a client or a task came or went
	closed  chan struct{} // a client has closed the keeper
	closes  sync.Once

	writing sync.Mutex // held while the record is written, so that an older record never replaces a newer one
	gone    bool       // the directory has been removed; guarded by writing

	unwritten bool         // the record could not be written; guarded by writing
	empty     *emptyRecord // what the record has; nil if it has tasks or can't be written; guarded by writing

	mu     sync.Mutex // guards all below
	client *session   // who controls the keeper, or nil
	sign   proc.Sign  // set while there is a client, for processes that want to end this keeper
	had    bool       // there has been one
	files  []*os.File // that stay open as long as the keeper lives
	ended  bool       // no further client is accepted
}

// serve runs until the keeper is closed, has been idle for long enough, or gets a signal to end while it has no client.
// It reports whether the record must stay.
func (s *server) serve(listener net.Listener, ends <-chan os.Signal) (keep bool) {
	s.wg.Go(func() { s.accept(listener) })
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
	timer := time.NewTimer(max(s.idle, startTime)) // the process that started this one is about to connect
	defer timer.Stop()
	since := time.Now() // when the keeper last had a task or a client
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

// endIdle stops accepting clients if there is no reason to stay.
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

// emptyRecord is what can change in a record without tasks.
type emptyRecord struct {
	dir    directory
	cgroup string
}

// record writes the record, and reports whether nothing would be lost with this process. If the disk is full, the next
// agent only knows less.
func (s *server) record() bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	here, err := identifyDir(s.dir)
	latest := Record{Keeper: s.self, Dir: here, Cgroup: s.local.CgroupDir()}
	if latest.Tasks, _ = s.list(context.Background()); len(latest.Tasks) > 0 {
		latest.At = proc.Now() // before the list: processes that run according to the list ran at this time
		latest.Tasks, _ = s.list(context.Background())
	} else if err == nil && s.empty != nil && *s.empty == (emptyRecord{here, latest.Cgroup}) {
		return true
	}
	s.empty = nil
	if err == nil {
		err = latest.write(s.dir)
	}
	if err == nil && len(latest.Tasks) == 0 {
		s.empty = &emptyRecord{here, latest.Cgroup}
	}
	gone := errors.Is(err, os.ErrNotExist) // and nobody will read it
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

// attend serves a connection, which has this number, to its end.
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
	if theirs.Version != version { // the client gets the reason; the present client goes on
		_ = (&frameWriter{w: conn}).write(hello{Version: version})
		return fmt.Errorf("process %d speaks version %d: %w", peer.PID, theirs.Version, ErrVersion)
	}
	c := newSession(s, conn)
	c.number = number
	defer close(c.done)
	if !s.admit(c) {
		return nil // without a hello: a client that gets one may rely on this keeper
	}
	defer s.leave(c)
	if err := c.out.write(hello{Version: version, Keeper: s.self}); err != nil {
		return fmt.Errorf("hello to process %d: %w", peer.PID, err)
	}
	_ = conn.SetDeadline(time.Time{})
	s.changed.Send()
	return c.serve()
}

// admit makes c the client and ends the previous client. Requests of the previous client, such as a start, end or are
// given up before the new client sends its first request, unless they take very long. It reports false if the keeper is
// about to end, or if a later client is connected: of several clients that waited for a frozen keeper, only the latest
// still waits.
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

// leave removes the client c.
func (s *server) leave(c *session) {
	s.mu.Lock()
	if s.client == c {
		s.client = nil
		s.sign.Clear()
	}
	s.mu.Unlock()
	s.changed.Send()
}

// sweep kills the processes that ended tasks have left behind. While there is a client, the client does that.
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

// keepOpen keeps files open for as long as the keeper lives. It closes a file that it has already, since each agent
// passes the files of the same locks.
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

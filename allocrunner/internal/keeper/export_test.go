package keeper

import (
	"context"
	"log/slog"
	"net"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/processes"
	"taskapi/internal/proc"
)

// MaxRequests is how many requests a client may have under way.
const MaxRequests = maxRequests

// RunIdle is the life of a keeper in dir that has neither task nor client.
func RunIdle(dir string) error {
	root, err := openDir(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	logger := slog.New(slog.DiscardHandler)
	s := &server{dir: root, idle: defaultIdle, logger: logger, local: processes.New(processes.Config{Logger: logger})}
	s.run(nil)
	return nil
}

// Keeper returns the identity of the latest keeper.
func (s *Supervisor) Keeper() proc.Identity {
	conn, _ := s.current()
	return conn.client.Keeper()
}

// Settled is closed when it is known what came of the end of the latest connection.
func (s *Supervisor) Settled() <-chan struct{} {
	conn, _ := s.current()
	return conn.settled
}

// SetAttach has s attach to keepers by another function than Attach.
func (s *Supervisor) SetAttach(attach func(ctx context.Context, dir string) (*Client, error)) {
	s.attach = attach
}

// BeginClose is the first step of Close.
func (s *Supervisor) BeginClose() { s.apply(closing) }

// ServeConn is the life of a keeper in dir that has one client and no task, from the client's first request.
func ServeConn(dir string, conn *net.UnixConn) error {
	root, err := openDir(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	s := &server{dir: root, local: processes.New(processes.Config{Logger: slog.New(slog.DiscardHandler)})}
	err = newSession(s, conn).serve()
	drivers.CloseFiles(s.files) // which the keeper's end does
	conn.Close()
	return err
}

// PID returns the process.
func (u *Unready) PID() int { return u.process.Pid }

// Abandon does what the kernel does when the program that called Prepare is killed, and waits for the process.
func (u *Unready) Abandon() error {
	u.closeFiles()
	_, err := u.process.Wait()
	return err
}

// ExpiryGrace is how long a keeper has to kill its tasks.
const ExpiryGrace = expiryGrace

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/socket"
)

// server is a socket on which the API answers.
type server struct {
	addr     string // the path that clients dial
	listener *socket.Listener
	cancel   context.CancelFunc
	done     chan error
	unlink   func() error
}

// socketSpec says where a socket is, whose it is, and who may connect.
type socketSpec struct {
	path     string
	owner    auth.Owner
	uid, gid int
	from     *socket.Handover // from an earlier listener; nil for none
}

// serve opens a socket and answers on it until close.
func (s *wiring) serve(spec socketSpec) (_ *server, err error) {
	share := s.shares[spec.owner.Task]
	if share == nil { // nothing would bound its connections
		return nil, fmt.Errorf("no connections are set aside for task %q", spec.owner.Task)
	}
	addr, unlink, err := socket.ShortLink(s.runtimeDirs, spec.path)
	if err != nil {
		return nil, err
	}
	set := s.limits
	if spec.owner.Task == "" {
		set = set.Operator()
	}
	config := socket.Config{
		Path:     spec.path,
		Mode:     0o600,
		UID:      spec.uid,
		GID:      spec.gid,
		MaxConns: set.Connections,
		Share:    share,
		Refusal:  []byte(handlers.Refusal),
		Logger:   s.logger,
	}
	var listener *socket.Listener
	if spec.from != nil {
		listener = spec.from.Listen(config)
	} else if listener, err = socket.Listen(config); err != nil {
		return nil, errors.Join(err, unlink())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.sockets.add(listener)
	srv := &server{addr: addr, listener: listener, cancel: cancel, done: make(chan error, 1), unlink: unlink}
	go func() {
		err := s.api.Serve(ctx, listener, spec.owner)
		s.sockets.remove(listener)
		srv.done <- err
	}()
	return srv, nil
}

// close ends the socket and waits for the requests on it.
func (s *server) close() error {
	s.cancel()
	return errors.Join(<-s.done, s.unlink())
}

// sockets counts the connections of all sockets, closed ones included.
type sockets struct {
	mu     sync.Mutex // guards the fields below
	open   map[*socket.Listener]struct{}
	closed socket.Stats // the sum over the closed sockets
}

func (s *sockets) add(l *socket.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[l] = struct{}{}
}

func (s *sockets) remove(l *socket.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, l)
	s.closed = sum(s.closed, l.Stats())
}

// stats returns the sum over all sockets.
func (s *sockets) stats() socket.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := s.closed
	for l := range s.open {
		total = sum(total, l.Stats())
	}
	return total
}

func sum(a, b socket.Stats) socket.Stats {
	return socket.Stats{
		Accepted:     a.Accepted + b.Accepted,
		Refused:      a.Refused + b.Refused,
		Unidentified: a.Unidentified + b.Unidentified,
		Open:         a.Open + b.Open,
	}
}

const (
	// operatorConnections is how many connections the operator can open, whatever the tasks have open.
	operatorConnections = 32
	// taskConnections is how many connections each task can open, whatever the others have open, or its part of one
	// half of all.
	taskConnections = 16
)

// shares are the parts of the connections that the sockets have, by task; the operator's has the empty name. All are
// made before the first socket is opened, also for tasks that start later.
type shares map[string]*socket.Share

// newShares divides a number of connections among the sockets of a group. A connection costs some 20 KiB; a task seldom
// has more than five.
func newShares(group *api.TaskGroup, connections int) shares {
	all, budget := shares{}, socket.NewBudget(connections)
	all[""] = budget.Share(operatorConnections)
	for _, task := range group.Tasks {
		all[task.Name] = budget.Share(guarantee(len(group.Tasks), connections))
	}
	return all
}

// guarantee returns how many of the connections each task can open, whatever the others have open.
func guarantee(tasks, connections int) int {
	return max(1, min(taskConnections, connections/2/tasks))
}

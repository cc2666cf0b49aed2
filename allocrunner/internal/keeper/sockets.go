package keeper

import (
	"context"
	"os"
	"slices"
	"sync"

	"taskapi/allocrunner/drivers"
)

// socketCopies are copies of the sockets that a keeper keeps for tasks. If the keeper is killed, they go on listening,
// and the next keeper gets them.
type socketCopies struct {
	turn sync.Mutex // held while the keeper is asked for its sockets, or is to close some

	mu    sync.Mutex // guards the fields below
	list  []drivers.HeldSocket
	files []*os.File           // one for each
	next  []drivers.HeldSocket // the sockets to hand over, with their next tasks; nil for none
}

// replace closes the copies, and keeps others.
func (c *socketCopies) replace(list []drivers.HeldSocket, files []*os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		drivers.CloseFiles(files)
		return
	}
	drivers.CloseFiles(c.files)
	c.list, c.files = list, files
}

// drop closes the copies that only this task wants.
func (c *socketCopies) drop(task string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		return
	}
	var list []drivers.HeldSocket
	var files []*os.File
	for i, l := range c.list {
		l.Tasks = slices.DeleteFunc(slices.Clone(l.Tasks), func(one string) bool { return one == task })
		if len(l.Tasks) == 0 {
			c.files[i].Close()
			continue
		}
		list, files = append(list, l), append(files, c.files[i])
	}
	c.list, c.files = list, files
}

// give passes the copies to another keeper.
func (c *socketCopies) give(ctx context.Context, client *Client) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.files) == 0 {
		return nil
	}
	return client.Adopt(ctx, c.list, c.files)
}

// copySockets takes new copies of the keeper's sockets. If it can't, clients of a task are refused while a keeper that
// was killed is replaced.
func (s *Supervisor) copySockets(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	s.sockets.turn.Lock()
	defer s.sockets.turn.Unlock()
	conn, _ := s.current()
	list, files, err := conn.client.Sockets(ctx)
	if err != nil { // an earlier version's keeper, or one that is gone: the next keeper gets the present copies
		s.cfg.Logger.Debug("the sockets of the tasks' keeper can't be copied", "error", err)
		return
	}
	s.sockets.replace(list, files)
}

// HandOver keeps sockets listening when their tasks and this Supervisor end, for another allocation in the same
// directory. Each socket has the name of its port, and the tasks that are to have the socket.
func (s *Supervisor) HandOver(sockets []drivers.HeldSocket) {
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	s.sockets.next = sockets
}

// finish hands over the wanted copies, and closes the others.
func (c *socketCopies) finish(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var over Handed
	for i, had := range c.list {
		wanted := slices.IndexFunc(c.next, func(l drivers.HeldSocket) bool {
			return l.Network == had.Network && l.Port == had.Port
		})
		if wanted < 0 {
			c.files[i].Close()
			continue
		}
		had.Name, had.Tasks = c.next[wanted].Name, c.next[wanted].Tasks
		over.list, over.files = append(over.list, had), append(over.files, c.files[i])
	}
	c.list, c.files, c.next = nil, nil, nil
	if len(over.list) == 0 {
		return
	}
	handed.Lock()
	defer handed.Unlock()
	handed.byDir[dir].Close()
	handed.byDir[dir] = &over
}

// Handed are listening sockets that an allocation has left to the next one in its directory.
type Handed struct {
	list  []drivers.HeldSocket
	files []*os.File
}

// handed are the sockets that nobody has taken yet.
var handed = struct {
	sync.Mutex
	byDir map[string]*Handed
}{byDir: map[string]*Handed{}}

// TakeHanded returns the sockets that were left in a directory, nil for none. The caller closes them, or gives them to
// Supervise.
func TakeHanded(dir string) *Handed {
	handed.Lock()
	defer handed.Unlock()
	h := handed.byDir[dir]
	delete(handed.byDir, dir)
	return h
}

// Sockets describes the sockets. Nil has none.
func (h *Handed) Sockets() []drivers.HeldSocket {
	if h == nil {
		return nil
	}
	return h.list
}

// Close closes the sockets. Nil has none.
func (h *Handed) Close() {
	if h != nil {
		drivers.CloseFiles(h.files)
	}
}

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
	files []*os.File // one for each
}

// replace closes the copies, and keeps others.
func (c *socketCopies) replace(list []drivers.HeldSocket, files []*os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	drivers.CloseFiles(c.files)
	c.list, c.files = list, files
}

// drop closes the copies that only this task wants.
func (c *socketCopies) drop(task string) {
	c.mu.Lock()
	defer c.mu.Unlock()
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
	if err != nil { // the keeper is of an earlier version, or it is gone, and the copies of before are for the next
		s.cfg.Logger.Debug("the sockets of the tasks' keeper can't be copied", "error", err)
		return
	}
	s.sockets.replace(list, files)
}

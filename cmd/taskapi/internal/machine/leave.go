package machine

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskapi/cmd/taskapi/internal/client"
)

// SystemStops reports whether systemd is shutting the machine down.
func SystemStops() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output() // its exit code is 1 then
	return strings.TrimSpace(string(out)) == "stopping"
}

// Leave makes the taskapi of every allocation exit and leave its tasks running. When the machine then stops the tasks,
// nobody notes that as the end of an allocation, and it is resumed when the machine has started again.
func (m *Machine) Leave(ctx context.Context) {
	m.mu.Lock()
	var ids []string
	for id, e := range m.entries {
		if !e.ended {
			ids = append(ids, id)
		}
	}
	m.mu.Unlock()
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			c := client.New(m.cfg.Dir, id)
			defer c.Close()
			was := c.Listening()
			if _, err := c.Signal(ctx, syscall.SIGUSR1); err != nil {
				m.cfg.Logger.Warn("an allocation can't be left running for the next start of the machine", "alloc", id,
					"error", err)
				return
			}
			c.AwaitClosed(ctx, was)
		})
	}
	all.Wait()
}

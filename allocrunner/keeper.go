package allocrunner

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/keeper"
)

// KeeperMain is the whole program when it has been executed anew as the parent of an allocation's tasks: the program's main calls
// it before anything else, with its arguments, and exits with the code when kept is true.
func KeeperMain(args []string) (code int, kept bool) {
	if len(args) != 3 || args[1] != keeper.Command { // the third is for ps to show
		return 0, false
	}
	return keeper.Main(), true
}

// supervise finds or makes the parent of the allocation's processes, and what it has of them already.
func (r *Runner) supervise(ctx context.Context) (driver.Supervisor, []driver.Status, error) {
	if len(os.Args) == 3 && os.Args[1] == keeper.Command { // else it would make keepers of itself without end
		return nil, nil, errors.New("this program does not call KeeperMain first")
	}
	// The directory tells this allocation's processes from those of one with the same ID in another data directory.
	mark := "NOMAD_ALLOC_DIR=" + allocdir.Paths(r.cfg.Dir, "").SharedDir
	s := &kept{cfg: keeper.Config{Dir: r.cfg.Dir, Mark: mark}}
	client, attached, err := keeper.Open(ctx, s.cfg)
	if err != nil {
		return nil, nil, err
	}
	s.client = client
	known, err := client.List(ctx)
	switch {
	case err == nil:
		return s, known, nil
	case attached: // its tasks go on as they are, for another try
		return nil, nil, errors.Join(err, client.Detach())
	}
	return nil, nil, errors.Join(err, client.Close())
}

// parent is the parent of the processes while it is being made, beside the rest of the set-up: a new process takes its time.
type parent struct {
	ready     chan struct{} // nil when nobody has begun
	processes driver.Supervisor
	known     []driver.Status
	err       error
}

func (p *parent) begin(supervise func() (driver.Supervisor, []driver.Status, error)) {
	p.ready = make(chan struct{})
	go func() {
		p.processes, p.known, p.err = supervise()
		close(p.ready)
	}()
}

func (p *parent) await() (driver.Supervisor, []driver.Status, error) {
	if p.ready == nil {
		return nil, nil, nil
	}
	<-p.ready
	return p.processes, p.known, p.err
}

// kept is the supervisor of an allocation whose processes a keeper has. Should the keeper be killed, its processes are gone with it;
// the next start makes another.
type kept struct {
	cfg keeper.Config

	mu     sync.Mutex // guards the fields below; held while a new keeper is made
	client *keeper.Client
	ended  bool // by Close or Detach: no other keeper is made
}

var _ driver.Supervisor = (*kept)(nil)

func (k *kept) current() *keeper.Client {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.client
}

// Start implements driver.Supervisor.
func (k *kept) Start(ctx context.Context, spec driver.Spec) (driver.Status, error) {
	client := k.current()
	status, err := client.Start(ctx, spec)
	if !errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrClosed) { // closed by another task's start, which found it lost
		return status, err
	}
	if client, err = k.renew(ctx, client); err != nil {
		return driver.Status{}, err
	}
	return client.Start(ctx, spec)
}

// renew replaces a client whose keeper is lost, unless somebody else has done so.
func (k *kept) renew(ctx context.Context, lost *keeper.Client) (*keeper.Client, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return nil, driver.ErrClosed
	}
	if k.client != lost {
		return k.client, nil
	}
	if err := lost.Close(); err != nil {
		return nil, err
	}
	client, _, err := keeper.Open(ctx, k.cfg)
	if err != nil {
		return nil, err
	}
	k.client = client
	return client, nil
}

// Wait implements driver.Supervisor.
func (k *kept) Wait(ctx context.Context, task string) (interfaces.ExitResult, error) {
	return k.current().Wait(ctx, task)
}

// Signal implements driver.Supervisor.
func (k *kept) Signal(ctx context.Context, task string, sig syscall.Signal) error {
	return k.current().Signal(ctx, task, sig)
}

// KillTree implements driver.Supervisor. A keeper that is gone has left nothing that the next one would not kill.
func (k *kept) KillTree(ctx context.Context, task string) (int, error) {
	n, err := k.current().KillTree(ctx, task)
	if errors.Is(err, driver.ErrLost) {
		return 0, nil
	}
	return n, err
}

// List implements driver.Supervisor.
func (k *kept) List(ctx context.Context) ([]driver.Status, error) { return k.current().List(ctx) }

// end is current for the last time.
func (k *kept) end() *keeper.Client {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	return k.client
}

// Detach leaves the keeper and its processes running.
func (k *kept) Detach() error { return k.end().Detach() }

// Close implements driver.Supervisor. What a killed keeper has left running goes, too.
func (k *kept) Close() error {
	if err := k.end().Close(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
	defer cancel()
	return keeper.Sweep(ctx, k.cfg)
}

// sweepTimeout bounds the killing of what a keeper has left: SIGKILL takes milliseconds, unless a process is stuck in the kernel.
const sweepTimeout = 10 * time.Second

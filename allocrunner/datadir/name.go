package datadir

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/privatefile"
	"taskapi/internal/wake"
)

// ErrNameInUse means that another process has held the lock on an allocation's name for longer than the caller waits.
var ErrNameInUse = errors.New("another process begins an allocation of this name")

// namePause is the pause between two attempts to lock a name. A start takes some 20 ms.
const namePause = 5 * time.Millisecond

// LockName takes the lock on an allocation's name, and waits for it at most that long. Only its holder looks for an
// allocation of this name and begins one. The lock is a byte of the file named names, locked for its
// open file (F_OFD_SETLK in fcntl(2)): it ends with the last descriptor of that, in whichever process that is.
func (d Dir) LockName(ctx context.Context, namespace, name string, most time.Duration) (*os.File, error) {
	f, err := privatefile.Open(d.Names(), os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("lock of allocation %s: %w", name, err)
	}
	sum := fnv.New64a()
	sum.Write([]byte(namespace + "\x00" + name))                                      // never fails
	lock := &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(sum.Sum64() >> 2), Len: 1} // two names rarely share a byte
	for deadline := time.Now().Add(most); ; {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, lock)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES):
			return nil, errors.Join(fmt.Errorf("lock of allocation %s: %s: %w", name, d.Names(), err), f.Close())
		case !time.Now().Before(deadline):
			return nil, errors.Join(ErrNameInUse, f.Close())
		}
		if wake.Sleep(ctx, namePause) != nil {
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

// sameName reports whether two allocations are the same one of a group. Names alone don't tell: "a.b.c[0]" is of job a
// or of job a.b.
func sameName(a, b *api.Allocation) bool {
	return a.Namespace == b.Namespace && a.JobID == b.JobID && a.TaskGroup == b.TaskGroup && a.Name == b.Name
}

// mayBe reports whether an allocation whose state can't be read may have alloc's name: no other can be read of it.
func (d Dir) mayBe(id string, alloc *api.Allocation) bool {
	dump, err := state.Inspect(d.State(id))
	return err != nil || dump.Saved.Alloc == nil || sameName(dump.Saved.Alloc, alloc)
}

// CheckUnread looks for tasks that run without a taskapi and may be of an allocation of alloc's name, since nobody can
// read of which they are. Errors: *UnreadError, *StateMissingError.
func (d Dir) CheckUnread(alloc *api.Allocation) error {
	ids, err := d.IDs()
	for _, id := range ids {
		if state.Ended(d.State(id)) { // most have, and this reads only the end of the file
			continue
		}
		if saved, err := d.Peek(id); err == nil && saved != nil {
			continue
		}
		_, err := d.Saved(id)
		switch {
		case err == nil, errors.Is(err, state.ErrInUse): // its taskapi says which it is
		case !d.mayBe(id, alloc), !allocrunner.TasksRunning(d.Alloc(id)):
		case errors.Is(err, state.ErrNotFound):
			return &StateMissingError{id}
		default:
			return &UnreadError{ID: id, Name: alloc.Name, Runs: true, Err: err}
		}
	}
	return err
}

// HoldName makes l the owner of the lock on the allocation's name. The name lock ends once the allocation is saved, and
// so found by others, or with l.
func (l *Lock) HoldName(name *os.File) { l.name = name }

// savedState lets others lock the allocation's name after the first write of the state.
type savedState struct {
	interfaces.State
	lock *Lock
}

func (s savedState) Put(saved interfaces.Saved) error {
	err := s.State.Put(saved)
	if err == nil {
		s.lock.releaseName()
	}
	return err
}

func (l *Lock) releaseName() {
	if l.name != nil {
		_ = l.name.Close() // a second Close has nothing to close
	}
}

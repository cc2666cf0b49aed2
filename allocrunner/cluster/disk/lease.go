package disk

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/privatefile"
)

// A lease has the index of the Commit that began it, and lives while anybody shares a lock on the byte with that number
// in the file named leases. The locks are those of open files (F_OFD_SETLK in fcntl(2)). Such a lock ends with the last
// descriptor of its open file, in whichever process that is. Whether there is one can be looked up without taking it.
// The file stays empty.
//
// One process looks up the leases for all. Otherwise n processes would look up n leases each, and the kernel would go
// through n locks each time. A process that has looked shares a lock on the byte at looks plus the time in
// milliseconds, so the others see when that was. A process that is stopped, or can't delete, keeps nobody from looking.
const looks = 1 << 62

// lease is one holder's part in a lease.
type lease struct {
	owner string
	file  *os.File
}

func (l *lease) Owner() string     { return l.owner }
func (l *lease) Files() []*os.File { return []*os.File{l.file} }
func (l *lease) Close() error {
	_ = l.file.Close() // a second Close has nothing to close
	return nil
}

func lockOf(number uint64, how int16) *unix.Flock_t {
	return &unix.Flock_t{Type: how, Start: int64(number), Len: 1}
}

// looked reports whether another process has looked up the leases within lookedTime before now.
func (s *Store) looked(now uint64) bool {
	lock := lockOf(looks+(now-uint64(lookedTime))/uint64(time.Millisecond), unix.F_WRLCK)
	lock.Len = lookedTime.Milliseconds() + 1
	err := unix.FcntlFlock(s.leases.Fd(), unix.F_OFD_GETLK, lock)
	return err == nil && lock.Type != unix.F_UNLCK
}

// noteLook notes that this process has looked up the leases. Without the note, other processes do so, too.
func (s *Store) noteLook(now uint64) {
	earlier := &unix.Flock_t{Type: unix.F_UNLCK, Start: looks} // to the end of the file
	_ = unix.FcntlFlock(s.leases.Fd(), unix.F_OFD_SETLK, earlier)
	_ = unix.FcntlFlock(s.leases.Fd(), unix.F_OFD_SETLK, lockOf(looks+now/uint64(time.Millisecond), unix.F_RDLCK))
}

// held reports whether an open file other than f holds a lease.
func held(f *os.File, number uint64) bool {
	lock := lockOf(number, unix.F_WRLCK)
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, lock)
	return err != nil || lock.Type != unix.F_UNLCK // it can't fail on an open file; if it did, the lease would live on
}

// live returns a function that reports whether a lease lives. It looks up each lease once.
func (s *Store) live() func(number uint64) bool {
	known := map[uint64]bool{}
	return func(number uint64) bool {
		is, ok := known[number]
		if !ok {
			is = held(s.leases, number)
			known[number] = is
		}
		return is
	}
}

// Hold joins a lease or begins one. It waits for the lock as Commit does.
func (s *Store) Hold(ctx context.Context, owner string) (cluster.Lease, error) {
	if err := cluster.CheckName("lease's owner", owner); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	f, err := privatefile.Open(s.path("leases"), os.O_RDONLY)
	if err != nil {
		return nil, unavailable(s.path("leases"), err)
	}
	_, err = s.write(ctx, lockTimeout, func() ([]table.Write, error) {
		if number := s.table.Lease(owner); number != 0 && held(f, number) {
			if err := s.share(f, number); err != nil || held(f, number) {
				return nil, err
			}
			// The last holder has gone in between: the lease has ended.
			if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, lockOf(number, unix.F_UNLCK)); err != nil {
				return nil, unavailable(f.Name(), err)
			}
		}
		writes, err := s.table.BeginLease(owner)
		if err != nil {
			return nil, err
		}
		return writes, s.share(f, s.table.Index+1)
	})
	if err != nil {
		f.Close()
		return nil, err
	}
	return &lease{owner, f}, nil
}

func (s *Store) share(f *os.File, number uint64) error {
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, lockOf(number, unix.F_RDLCK)); err != nil {
		return unavailable(f.Name(), err)
	}
	return nil
}

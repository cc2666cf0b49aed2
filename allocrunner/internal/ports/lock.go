package ports

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/internal/flock"
	"taskapi/internal/safedir"
)

// A port lock is a lock on a file (flock) in a directory that only its owner can use. Port 8080 has
//
//	8080             locked by the owner of every address, and shared by all owners of one
//	8080@127.0.0.1   locked by the owner of that address
//
// A file with an exclusive lock contains its owner's name. The lock belongs to the open file, which another process may
// have, too. If these processes are killed, the file stays, and the lock is the owner's as long as processes are left
// of the owner (Config.Left).

// lockRoot returns the directory of the locks of our user's allocations in the present network namespace. Other users
// can neither make nor hold a lock there: between users only a bound socket decides.
func lockRoot() (string, error) {
	uid := os.Geteuid()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("taskapi-%d", uid))
	candidates := []string{os.Getenv("XDG_RUNTIME_DIR"), fmt.Sprintf("/run/user/%d", uid)}
	if uid == 0 {
		candidates = []string{"/run"}
	}
	for _, runtime := range candidates {
		var st unix.Stat_t
		private := unix.Lstat(runtime, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Uid == uint32(uid) &&
			st.Mode&0o022 == 0
		if filepath.IsAbs(runtime) && private { // nobody but our user can put anything into it
			dir = filepath.Join(runtime, "taskapi")
			break
		}
	}
	space, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"", "ports", strings.Trim(strings.TrimPrefix(space, "net:"), "[]")} {
		own, err := safedir.Own(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		dir = own.Path
		own.Close()
	}
	return dir, nil
}

// lockPort keeps our user's other allocations away from the port. A wildcard stands for every address, also of the
// other family: "::" accepts connections to all of them. Errors: ErrTaken.
func (h *reservedPort) lockPort(owner string) (err error) {
	h.release()
	defer func() {
		if err != nil {
			h.release()
		}
	}()
	dir, err := lockRoot()
	if err != nil {
		return fmt.Errorf("lock port %d: %w", h.at.Port(), err)
	}
	port := filepath.Join(dir, strconv.Itoa(int(h.at.Port())))
	if h.at.Addr().IsUnspecified() {
		return h.lock(port, owner, true)
	}
	if err := h.lock(port, owner, false); err != nil {
		return err
	}
	return h.lock(port+"@"+h.at.Addr().String(), owner, true)
}

// release releases the locks.
func (h *reservedPort) release() {
	for _, lock := range h.locks {
		release(lock)
	}
	h.locks, h.shared = nil, false
}

// lock takes one lock, unless another process has it for the same owner.
func (h *reservedPort) lock(path, owner string, alone bool) error {
	how, text := unix.LOCK_SH, ""
	if alone {
		how, text = unix.LOCK_EX, owner
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return fmt.Errorf("lock port: %w", err)
		}
		err = flock.Lock(int(f.Fd()), how, 0)
		if err == nil && !stillAt(f, path) { // it was released and removed just now
			f.Close()
			continue
		}
		if err == nil {
			if err := h.leftToOther(f, owner, alone); err != nil {
				f.Close() // and the file stays
				return err
			}
			_ = f.Truncate(0) // the name is for messages, and tells the owner that the lock is its own
			_, _ = f.WriteAt([]byte(text), 0)
			h.locks = append(h.locks, f)
			return nil
		}
		defer f.Close()
		if !errors.Is(err, flock.ErrLocked) {
			return fmt.Errorf("lock port: %s: %w", path, err)
		}
		h.shared = true
		return reserved(f, owner)
	}
}

// leftToOther returns an error if another owner has left processes and a lock that conflicts with this one, which has
// just been taken. The exclusive lock of a wildcard also conflicts with those of single addresses.
func (h *reservedPort) leftToOther(f *os.File, owner string, alone bool) error {
	dir, name := filepath.Split(f.Name())
	names := []string{name}
	if alone && h.at.Addr().IsUnspecified() {
		single, _ := fs.Glob(os.DirFS(dir), name+"@*") // the pattern is good
		names = append(names, single...)
	}
	for _, name := range names {
		text, _ := os.ReadFile(filepath.Join(dir, name)) // one that is gone has no owner
		whose := string(text)
		if whose != "" && whose != owner && h.left != nil && h.left(whose) {
			return &ReservedError{Port: strconv.Itoa(int(h.at.Port())), Owner: whose}
		}
	}
	return nil
}

func stillAt(f *os.File, path string) bool {
	now, err := os.Lstat(path)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(info, now)
}

// maxOwner bounds how much of a lock's file is read.
const maxOwner = 4096

// reserved returns an error that names the holder of a lock; nil if that is the owner.
func reserved(f *os.File, owner string) error {
	text := make([]byte, maxOwner)
	n, _ := f.ReadAt(text, 0)
	whose := string(text[:n])
	if whose == owner && owner != "" {
		return nil
	}
	port, _, _ := strings.Cut(filepath.Base(f.Name()), "@")
	return &ReservedError{Port: port, Owner: whose}
}

// ReservedError is a port that another allocation has reserved. It is an ErrTaken.
type ReservedError struct {
	Port  string
	Owner string // as that allocation's Config has it; empty if it is unknown
}

func (e *ReservedError) Error() string {
	whose := ""
	if e.Owner != "" {
		whose = " in " + e.Owner
	}
	return fmt.Sprintf("%v: %s is reserved for another allocation%s", ErrTaken, e.Port, whose)
}

func (e *ReservedError) Is(target error) bool { return target == ErrTaken }

// release releases a lock. It removes the file unless another process has the lock: one that has the open file, or
// another allocation's.
func release(lock *os.File) {
	lock.Close()
	// Another open file: the same one has the lock in any case.
	f, err := os.OpenFile(lock.Name(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if flock.Lock(int(f.Fd()), unix.LOCK_EX, 0) == nil && stillAt(f, f.Name()) {
		_ = os.Remove(f.Name())
	}
}

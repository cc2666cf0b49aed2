// Package allocdir makes the directories of an allocation and of its tasks, and puts files into them, for the task's user and
// against it: a task can write into its own directory and into alloc/, and may have put a symbolic link where taskapi, as root,
// is about to create, chown or chmod something. No path below the allocation directory is ever followed through a link; what is
// in the way is an error that names it.
//
//	DIR/allocs/ALLOC_ID     0710 ours    for the group of its tasks; 0700 where they all are ours
//	  alloc                01777 ours    shared by the tasks; sticky, so that none can replace logs
//	    data                0777
//	    logs                0755         written by taskapi alone
//	    tmp                01777
//	  TASK                  0755 user    the task's working directory
//	    local               0755 user
//	    secrets, private    0700 user
//	    tmp                01777 user
package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
)

// Names of the directories, as Nomad has them.
const (
	SharedName  = "alloc"
	dataName    = "data"
	logName     = "logs"
	tmpName     = "tmp"
	localName   = "local"
	secretsName = "secrets"
	privateName = "private"
)

// parentPerm lets a task's user reach its directory and list none.
const parentPerm = 0o711

// Access says who may enter an allocation directory besides its owner, who is this program's user. What is below it is for all who may.
type Access struct {
	group int
	perm  uint32
	keep  bool
}

// OnlyOwner is for tasks that are all our user's, or root's, or over; AnyUser is for any user who knows the directory's name; Unchanged leaves
// a directory as it is, or makes it AnyUser's.
var (
	OnlyOwner = Access{group: -1, perm: 0o700}
	AnyUser   = Access{group: -1, perm: 0o711}
	Unchanged = Access{group: -1, perm: 0o711, keep: true}
)

// ForGroup returns the Access for tasks that have a group of their own.
func ForGroup(gid uint32) Access { return Access{group: int(gid), perm: 0o710} }

// spec returns the allocation directory of that access.
func (a Access) spec(name string) spec {
	s := spec{name, a.perm, owner{os.Getuid(), os.Getgid()}, enforce}
	if a.group >= 0 {
		s.owner.gid = a.group
	}
	if a.keep {
		s.owner.gid, s.mode = -1, atCreation
	}
	return s
}

// Close lets nobody but its owner into an allocation directory any more, and gives its group up.
func Close(dir string) error {
	h, err := openTop(dir)
	if err != nil {
		return err
	}
	defer h.close()
	return h.setOwner(OnlyOwner.spec(""), true)
}

// Paths says where a task of the allocation in dir lives. It makes nothing. An empty task gives the paths of the allocation
// alone.
func Paths(dir, task string) interfaces.TaskDir {
	shared := filepath.Join(dir, SharedName)
	paths := interfaces.TaskDir{AllocDir: dir, SharedDir: shared, LogDir: filepath.Join(shared, logName)}
	if task == "" {
		return paths
	}
	paths.Dir = filepath.Join(dir, task)
	paths.LocalDir = filepath.Join(paths.Dir, localName)
	paths.SecretsDir = filepath.Join(paths.Dir, secretsName)
	paths.PrivateDir = filepath.Join(paths.Dir, privateName)
	paths.TmpDir = filepath.Join(paths.Dir, tmpName)
	return paths
}

// ErrPlanted: a task's directory is there before the allocation has begun. Nobody knows who put it there, and what is in it would be run.
var ErrPlanted = errors.New("is there already, and the allocation has not begun")

// BuildAlloc makes the allocation directory and what its tasks share. What is there already is kept; its modes are put right.
// The parents of dir are trusted: they are the operator's. Where there is nothing that the tasks share, none of them has begun, and none has
// a directory: ErrPlanted.
func BuildAlloc(dir string, access Access, tasks []string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("make allocation directory: %q is not an absolute path", dir)
	}
	parent, name := filepath.Split(filepath.Clean(dir))
	if err := makeParents(filepath.Clean(parent)); err != nil {
		return explain("make data directory", err)
	}
	top, err := openTop(parent)
	if err != nil {
		return explain("open data directory", err)
	}
	defer top.close()
	ours := owner{os.Getuid(), os.Getgid()}
	return top.within(access.spec(name), func(alloc *handle) error {
		if err := alloc.unplanted(tasks); err != nil {
			return err
		}
		return alloc.within(spec{SharedName, 0o777 | unix.S_ISVTX, ours, enforce}, func(shared *handle) error {
			return shared.all(
				spec{dataName, 0o777, ours, enforce},
				spec{logName, 0o755, ours, enforce},
				spec{tmpName, 0o777 | unix.S_ISVTX, ours, enforce},
			)
		})
	})
}

// unplanted refuses directories of tasks in an allocation directory that no allocation has used.
func (h *handle) unplanted(tasks []string) error {
	if h.has(SharedName) {
		return nil
	}
	for _, task := range tasks {
		if h.has(task) {
			return fmt.Errorf("%s %w: remove it, or choose another allocation ID", filepath.Join(h.path, task), ErrPlanted)
		}
	}
	return nil
}

// has reports whether there is something of that name, or it can't be determined.
func (h *handle) has(name string) bool {
	var st unix.Stat_t
	return !errors.Is(unix.Fstatat(h.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT)
}

// makeParents makes the directories that are missing, passable for the tasks' users whatever the umask is.
func makeParents(path string) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeParents(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, parentPerm); err != nil {
		if errors.Is(err, fs.ErrExist) { // another taskapi was faster
			return nil
		}
		return err
	}
	return os.Chmod(path, parentPerm)
}

// BuildTask makes the directory of a task, owned by its user, in an allocation directory that BuildAlloc made. What is there
// already is kept; secrets and private are closed again if the task opened them. It fails when the user can't reach the
// directory.
func BuildTask(dir, task string, user interfaces.User) (interfaces.TaskDir, error) {
	paths := Paths(dir, task)
	if task == "" || task == SharedName || filepath.Base(task) != task || task == ".." || task == "." {
		return paths, fmt.Errorf("make task directory: a task can't be named %q", task)
	}
	top, err := openTop(dir)
	if err != nil {
		return paths, explain("open allocation directory", err)
	}
	defer top.close()
	own := owner{int(user.UID), int(user.GID)}
	err = top.within(spec{task, 0o755, own, atCreation}, func(t *handle) error {
		return t.all(
			spec{localName, 0o755, own, atCreation},
			spec{secretsName, 0o700, own, enforce},
			spec{privateName, 0o700, own, enforce},
			spec{tmpName, 0o777 | unix.S_ISVTX, own, atCreation},
		)
	})
	if err != nil {
		return paths, err
	}
	return paths, CheckReach(dir, user)
}

// CheckReach finds the first directory on the way to dir that user may not pass, before the start fails for a reason that nobody
// understands. What is not there is left out: it will be made so that everybody may pass it.
func CheckReach(dir string, user interfaces.User) error {
	if user.UID == 0 || int(user.UID) == os.Getuid() {
		return nil
	}
	for at := dir; ; at = filepath.Dir(at) {
		var st unix.Stat_t
		err := unix.Stat(at, &st)
		if errors.Is(err, unix.ENOENT) && at != filepath.Dir(at) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at %s: %w", at, err)
		}
		if !mayPass(st, user) {
			return fmt.Errorf("user %q can't reach the allocation directory: %s has mode %#o; run `chmod o+x %s` or choose another data directory",
				user.Name, at, st.Mode&0o7777, at)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

func mayPass(st unix.Stat_t, user interfaces.User) bool {
	if st.Uid == user.UID {
		return st.Mode&0o100 != 0
	}
	groups := append([]uint32{user.GID}, user.Groups...)
	if slices.Contains(groups, st.Gid) {
		return st.Mode&0o010 != 0
	}
	return st.Mode&0o001 != 0
}

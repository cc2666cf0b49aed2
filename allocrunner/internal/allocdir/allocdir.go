// Package allocdir makes the directories of an allocation and of its tasks, and puts files into them. A task can write
// into its own directory and into alloc/, so it may have put a symbolic link where taskapi, as root, creates, chowns or
// chmods something. Therefore the package never follows a link below the allocation directory; a link or a file in the
// way is an error that names it.
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
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/safedir"
)

// Names of the directories, as Nomad has them.
const (
	SharedName  = "alloc"
	dataName    = "data"
	LogName     = "logs"
	tmpName     = "tmp"
	localName   = "local"
	SecretsName = "secrets"
	PrivateName = "private"
)

// Access says who may enter an allocation directory besides its owner, this program's user. A user
// who may enter it can use everything below it.
type Access struct {
	group int
	perm  uint32
	keep  bool
}

// OnlyOwner is for allocations whose tasks all run as our user or as root, or have ended. AnyUser lets every user in
// who knows the directory's name. Unchanged leaves a directory as it is, and makes a new one like AnyUser.
var (
	OnlyOwner = Access{group: -1, perm: 0o700}
	AnyUser   = Access{group: -1, perm: 0o711}
	Unchanged = Access{group: -1, perm: 0o711, keep: true}
)

// ForGroup returns the Access for tasks that have a group of their own.
func ForGroup(gid uint32) Access { return Access{group: int(gid), perm: 0o710} }

// spec returns the allocation directory of that access.
func (a Access) spec(name string) spec {
	s := spec{name, a.perm, owner{os.Getuid(), os.Getgid()}, enforce, nil}
	if a.group >= 0 {
		s.owner.gid = a.group
	}
	if a.keep {
		s.owner.gid, s.mode = -1, atCreation
	}
	return s
}

// Close lets only the owner enter an allocation directory, and takes its group away.
func Close(dir string) error {
	h, err := openTop(dir)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.setOwner(OnlyOwner.spec(""), true)
}

// Paths returns the directories of a task of the allocation in dir, or, for an empty task, those of the allocation
// alone. It makes nothing.
func Paths(dir, task string) interfaces.TaskDir {
	shared := filepath.Join(dir, SharedName)
	paths := interfaces.TaskDir{AllocDir: dir, SharedDir: shared, LogDir: filepath.Join(shared, LogName)}
	if task == "" {
		return paths
	}
	paths.Dir = filepath.Join(dir, task)
	paths.LocalDir = filepath.Join(paths.Dir, localName)
	paths.SecretsDir = filepath.Join(paths.Dir, SecretsName)
	paths.PrivateDir = filepath.Join(paths.Dir, PrivateName)
	paths.TmpDir = filepath.Join(paths.Dir, tmpName)
	return paths
}

// ErrPlanted: a task's directory exists before the allocation has begun. Nobody knows who made the directory, and its
// files would be executed.
var ErrPlanted = errors.New("is there already, and the allocation has not begun")

// BuildAlloc makes the allocation directory and the directories that its tasks share. Existing directories are kept,
// and their modes are set. The parents of dir are trusted: they are the operator's. If the tasks share nothing yet,
// none of them has begun, and a directory of a task is an error: ErrPlanted.
func BuildAlloc(dir string, access Access, tasks []string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("make allocation directory: %q is not an absolute path", dir)
	}
	parent, name := filepath.Split(filepath.Clean(dir))
	if err := safedir.MakePassable(filepath.Clean(parent)); err != nil {
		return explain("make data directory", err)
	}
	top, err := openTop(parent)
	if err != nil {
		return explain("open data directory", err)
	}
	defer top.Close()
	alloc, err := top.ensure(access.spec(name))
	if err != nil {
		return explain("make directory", err)
	}
	defer alloc.Close()
	for _, task := range tasks {
		if !alloc.has(SharedName) && alloc.has(task) {
			return fmt.Errorf("%s %w: remove it, or choose another allocation ID", filepath.Join(alloc.Path, task), ErrPlanted)
		}
	}
	ours := owner{os.Getuid(), os.Getgid()}
	return alloc.make(spec{SharedName, 0o777 | unix.S_ISVTX, ours, enforce, []spec{
		{dataName, 0o777, ours, enforce, nil},
		{LogName, 0o755, ours, enforce, nil},
		{tmpName, 0o777 | unix.S_ISVTX, ours, enforce, nil},
	}})
}

// has reports whether something of that name exists, or may exist.
func (h handle) has(name string) bool {
	var st unix.Stat_t
	return !errors.Is(unix.Fstatat(h.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT)
}

// BuildTask makes the directory of a task, owned by the task's user, in an allocation directory that BuildAlloc has
// made. BuildTask keeps existing directories, and closes secrets and private again if the task opened them. It fails if
// the user can't reach the directory.
func BuildTask(dir, task string, user interfaces.User) (interfaces.TaskDir, error) {
	paths := Paths(dir, task)
	if task == "" || task == SharedName || filepath.Base(task) != task || task == ".." || task == "." {
		return paths, fmt.Errorf("make task directory: a task can't be named %q", task)
	}
	top, err := openTop(dir)
	if err != nil {
		return paths, explain("open allocation directory", err)
	}
	defer top.Close()
	own := owner{int(user.UID), int(user.GID)}
	err = top.make(spec{task, 0o755, own, atCreation, []spec{
		{localName, 0o755, own, atCreation, nil},
		{SecretsName, 0o700, own, enforce, nil},
		{PrivateName, 0o700, own, enforce, nil},
		{tmpName, 0o777 | unix.S_ISVTX, own, atCreation, nil},
	}})
	if err != nil {
		return paths, err
	}
	return paths, CheckReach(dir, user)
}

// CheckReach returns an error that names the first directory on the way to dir that the user may not pass through.
// Otherwise the start would fail without a clear reason. It ignores missing directories, which will be made so that
// everybody may pass.
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
			return fmt.Errorf("user %q can't reach the allocation directory: %s has mode %#o; run `chmod o+x %s` or choose "+
				"another data directory",
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

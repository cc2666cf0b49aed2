package allocrunner

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/accounts"
	"taskapi/allocrunner/internal/allocdir"
)

// DefaultIDRange is the default range of users for tasks without one.
var DefaultIDRange = accounts.Default

// OwnUserTasks returns the names of the group's tasks that run as this program's user. With isolated, tasks for which
// the job names no user run as users of their own.
func OwnUserTasks(group *api.TaskGroup, isolated bool) []string {
	var names []string
	for _, t := range group.Tasks {
		if user, err := allocdir.LookupUser(t.User); err == nil && int(user.UID) == os.Geteuid() &&
			(t.User != "" || !isolated) {
			names = append(names, t.Name)
		}
	}
	return names
}

// users are the users of the tasks for which the job names none, and the group of all these users.
type users struct {
	accounts.List
	taken   bool
	written bool // in the directory
}

// acquireUsers takes the users and groups that the tasks need besides their own, and returns who may enter the
// allocation's directory.
func (r *Runner) acquireUsers() (allocdir.Access, error) {
	isolate := r.cfg.IsolateUsers != interfaces.IDRange{}
	switch {
	case os.Geteuid() != 0 && isolate:
		return allocdir.OnlyOwner, errors.New("only root can give tasks users of their own")
	case os.Geteuid() != 0:
		return allocdir.OnlyOwner, nil
	}
	had, err := accounts.Load(r.cfg.Dir)
	unknown := errors.Is(err, fs.ErrNotExist)
	if err != nil && !unknown {
		switch {
		case r.cfg.Saved == nil:
			return allocdir.OnlyOwner, err
		case !isolate && !r.fsm.state().stopped: // those that had users of their own would begin again as ours
			return allocdir.OnlyOwner, fmt.Errorf("%w: stop the allocation or, if its tasks had no users of their "+
				"own, remove that file", err)
		}
		r.logger.Warn("the users of the tasks are unknown: after their next start the tasks may run as other users", "error",
			err)
	}
	if r.cfg.Saved == nil && !isolate {
		had.Tasks = nil
	}
	isolate = isolate || len(had.Tasks) > 0 // running tasks keep their users, whatever the flags say now
	// all of its tasks are ours, or an older program began it: they have no group
	if unknown && r.cfg.Saved != nil && !isolate {
		return allocdir.Unchanged, nil
	}
	isolated, others := r.needUsers(isolate)
	if len(isolated) == 0 && !others && had.Group == 0 {
		return allocdir.OnlyOwner, nil
	}
	in := cmp.Or(r.cfg.IsolateUsers, accounts.Default)
	list, err := accounts.Registry{}.Take(r.cfg.Dir, had, r.cfg.Saved != nil && TasksRunning(r.cfg.Dir), isolated, in)
	if err != nil && len(isolated) > 0 {
		return allocdir.OnlyOwner, fmt.Errorf("isolate users: %w", err)
	}
	if err != nil {
		r.logger.Warn("every user of this machine who learns the allocation's directory can enter it: there is no "+
			"group for its tasks alone", "error", err)
		return allocdir.AnyUser, nil
	}
	for task, uid := range had.Tasks {
		if list.Tasks[task] != uid && list.Tasks[task] != 0 {
			r.logger.Warn("somebody else has the user number of the task's files by now: the task may not be able "+
				"to read them",
				"task", task, "was", uid, "is", list.Tasks[task])
		}
	}
	list.Sticky = interfaces.Sticky(r.Alloc())
	r.resources.users = users{List: list, taken: true, written: list.Group == had.Group &&
		maps.Equal(list.Tasks, had.Tasks) && list.Sticky == had.Sticky}
	return allocdir.ForGroup(list.Group), nil
}

// needUsers returns the names of the tasks that need a user, and whether one of the other tasks has a user other than
// ours.
func (r *Runner) needUsers(isolate bool) (isolated []string, others bool) {
	for _, t := range r.group().Tasks {
		if isolate && t.User == "" {
			isolated = append(isolated, t.Name)
			continue
		}
		user, err := allocdir.LookupUser(t.User)
		others = others || err != nil || user.UID != 0 // a missing user may still be created
	}
	return isolated, others
}

// releaseUsers gives back what acquireUsers took. Files keep their owners, so nobody can read them any more. Sticky
// data also keep the numbers of their owners.
func (r *Runner) releaseUsers() error {
	if !r.resources.users.taken {
		return nil
	}
	r.resources.users.taken = false
	err := allocdir.Close(r.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if r.resources.users.Sticky {
		return err
	}
	return errors.Join(err, accounts.Registry{}.Release(r.cfg.Dir))
}

// releaseSticky gives back the numbers that the allocation's sticky data keep, after remove has removed the directory.
func (r *Runner) releaseSticky(remove func() error) error {
	list, _ := accounts.Load(r.cfg.Dir) // of a missing list nothing is to be given back
	if err := remove(); err != nil || !list.Sticky {
		return err
	}
	return accounts.Registry{}.Release(r.cfg.Dir)
}

// lookupUser returns the user of a task. Errors: those of allocdir.LookupUser.
func (r *Runner) lookupUser(t *api.Task) (interfaces.User, error) {
	own := r.resources.users
	if uid := own.Tasks[t.Name]; uid != 0 && t.User == "" {
		return interfaces.User{Name: strconv.FormatUint(uint64(uid), 10), UID: uid, GID: uid,
			Groups: []uint32{own.Group}, Home: "/"}, nil
	}
	user, err := allocdir.LookupUser(t.User)
	if err == nil && own.Group != 0 && int(user.UID) != os.Geteuid() {
		user.Groups = append(slices.Clip(user.Groups), own.Group)
	}
	return user, err
}

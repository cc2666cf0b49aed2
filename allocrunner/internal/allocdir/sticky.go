package allocdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The sticky data of an allocation are alloc/data and the tasks' local directories. They move from one allocation
// directory to another whole or not at all, together with the list of the tasks' users. Gather moves them into
// stickyName in the directory where they are, Pass moves stickyName to the other directory by one rename, and Spread
// puts them into their places there. Each step is one rename, and a call after a kill continues. The caller holds the
// locks of the allocations.

// stickyName is the directory of sticky data on their way: alloc is alloc/data, and TASK is TASK/local.
const stickyName = ".sticky"

// place is the directory of a part of the sticky data.
type place struct {
	dir  string // in the allocation directory; it is also the part's name in stickyName
	name string // in dir
}

// places returns the places of the sticky data of these tasks. No task is called alloc.
func places(tasks []string) []place {
	all := []place{{SharedName, dataName}}
	for _, task := range tasks {
		all = append(all, place{task, localName})
	}
	return all
}

// usersName is the list of the tasks' users, in the allocation directory and in stickyName. See package accounts.
const usersName = "users.json"

// rename is exchanged by tests, which end before a step.
var rename = unix.Renameat2

// move moves an entry of a directory to another directory. A missing entry has moved already.
func (h handle) move(name string, to handle, as string, flags uint) error {
	err := rename(h.FD, name, to.FD, as, flags)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.LinkError{Op: "move", Old: filepath.Join(h.Path, name), New: filepath.Join(to.Path, as), Err: err}
	}
	return nil
}

// Gather begins to move the sticky data of an ended allocation: those of the given tasks, and the data that the tasks
// share. What a task has put in the place of a directory stays.
func Gather(dir string, tasks []string) error {
	if err := nothingMounted(dir); err != nil {
		return fmt.Errorf("sticky data of %s: %w", dir, err)
	}
	top, err := openTop(dir)
	if err != nil {
		return explain("open allocation directory", err)
	}
	defer top.Close()
	sticky, err := top.ensure(OnlyOwner.spec(stickyName))
	if err != nil {
		return explain("make directory", err)
	}
	defer sticky.Close()
	for _, p := range places(tasks) {
		if err := top.gather(p, sticky); err != nil {
			return err
		}
	}
	return top.move(usersName, sticky, usersName, unix.RENAME_NOREPLACE)
}

func (h handle) gather(p place, sticky handle) error {
	dir, err := h.open(p.dir)
	if err != nil {
		return ignoreAbsent(err)
	}
	defer dir.Close()
	data, err := dir.open(p.name)
	if err != nil {
		return ignoreAbsent(err)
	}
	data.Close()
	return dir.move(p.name, sticky, p.dir, unix.RENAME_NOREPLACE)
}

// ignoreAbsent ignores the error of open where there is no directory.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrLink) || errors.Is(err, ErrNotDirectory) {
		return nil
	}
	return err
}

// Pass gives the data that Gather has moved to an allocation that has not begun.
func Pass(dir, to string) error {
	from, err := openTop(dir)
	if err != nil {
		return explain("open allocation directory", err)
	}
	defer from.Close()
	next, err := openTop(to)
	if err != nil {
		return explain("open allocation directory", err)
	}
	defer next.Close()
	return from.move(stickyName, next, stickyName, unix.RENAME_NOREPLACE)
}

// Spread puts the sticky data that Pass has brought, or that Gather has moved before a kill, into their places in an
// allocation directory. Those of other tasks than the given ones stay where they are.
func Spread(dir string, tasks []string) error {
	top, err := openTop(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return explain("open allocation directory", err)
	}
	defer top.Close()
	sticky, err := top.open(stickyName)
	if err != nil {
		return ignoreAbsent(err)
	}
	defer sticky.Close()
	if err := BuildAlloc(dir, Unchanged, tasks); err != nil {
		return err
	}
	if err := sticky.move(usersName, top, usersName, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	for _, p := range places(tasks) {
		if !sticky.has(p.dir) {
			continue
		}
		to, err := top.ensure(spec{p.dir, 0o755, owner{-1, -1}, atCreation, nil}) // BuildTask sets the owner
		if err != nil {
			return explain("make directory", err)
		}
		err = sticky.move(p.dir, to, p.name, 0) // an empty directory may be there
		to.Close()
		if err != nil {
			return err
		}
	}
	err = unix.Unlinkat(top.FD, stickyName, unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return &fs.PathError{Op: "remove", Path: sticky.Path, Err: err}
	}
	return nil
}

// HasSticky reports whether an allocation directory has sticky data that are not empty, or that can't be read.
func HasSticky(dir string) bool {
	top, err := openTop(dir)
	if err != nil {
		return false
	}
	defer top.Close()
	names, err := os.ReadDir(top.Proc())
	for _, e := range names {
		at := []string{e.Name(), localName}
		if e.Name() == SharedName {
			at[1] = dataName
		}
		if top.holds(at...) {
			return true
		}
	}
	passed, _ := os.ReadDir(filepath.Join(top.Proc(), stickyName)) // nobody else can put a link there
	for _, e := range passed {
		if top.holds(stickyName, e.Name()) {
			return true
		}
	}
	return err != nil
}

// Built reports whether BuildAlloc has begun to make an allocation directory's content, or data have been passed to it.
func Built(dir string) bool {
	top, err := openTop(dir)
	if err != nil {
		return false
	}
	defer top.Close()
	return top.has(SharedName) || top.has(stickyName)
}

// holds reports whether a directory below h has entries. One that can't be read may have some.
func (h handle) holds(path ...string) bool {
	if len(path) > 0 {
		next, err := h.open(path[0])
		if err != nil {
			return ignoreAbsent(err) != nil
		}
		defer next.Close()
		return next.holds(path[1:]...)
	}
	dir, err := os.Open(h.Proc())
	if err != nil {
		return true
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	return !errors.Is(err, io.EOF)
}

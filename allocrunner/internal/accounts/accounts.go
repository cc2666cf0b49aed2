// Package accounts gives an allocation user and group IDs that no other allocation has. No two allocations of this
// machine have the same ID at a time, whatever their data directories are. A new ID is in no entry of the user or group
// database, and no process has it. Only root can use the package.
//
// Each ID that is taken is a file in one directory of the machine, which names the allocation's directory. The
// allocation has a list of its own IDs, which survives a reboot.
package accounts

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/privatefile"
	"taskapi/internal/proc"
	"taskapi/internal/safedir"
)

// Default is the range of IDs unless the operator gives another: Nomad's range of dynamic users.
var Default = interfaces.IDRange{From: 80000, To: 89999}

// Errors of Take.
var (
	// ErrNone: every ID of the range is in use.
	ErrNone = errors.New("no number is free")
	// ErrUnmapped: the user namespace of this program does not have the range.
	ErrUnmapped = errors.New("this user namespace does not have them")
)

// listFile is the allocation's own list, in its directory.
const listFile = "users.json"

// maxList is more than the list of any group.
const maxList = 1 << 20

// List holds the IDs of an allocation.
type List struct {
	Group uint32            `json:"group,omitempty"` // of all of its tasks; 0: none
	Tasks map[string]uint32 `json:"tasks,omitempty"` // users, each with a group of the same number
	// Sticky keeps the IDs after the allocation's end: they belong to the allocation that has the list, to which the
	// files of the users move with it.
	Sticky bool `json:"sticky,omitempty"`
}

// Load reads the list of the allocation in dir. The error is fs.ErrNotExist when it has none.
func Load(dir string) (List, error) {
	var l List
	name := filepath.Join(dir, listFile)
	text, _, err := privatefile.Read(name, maxList)
	if errors.Is(err, fs.ErrNotExist) {
		return List{}, err
	}
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return List{}, fmt.Errorf("read the allocation's users: %w; without %s its tasks get new users, who don't own the "+
			"files of the old ones", err, name)
	}
	return l, nil
}

// Save saves the list of the allocation in dir.
func (l List) Save(dir string) error {
	text, err := json.Marshal(l)
	if err == nil {
		err = privatefile.Write(filepath.Join(dir, listFile), text)
	}
	if err != nil {
		return fmt.Errorf("save the allocation's users: %w", err)
	}
	return nil
}

// Registry is a directory of IDs that are taken. The zero value is the machine's.
type Registry struct {
	// Dir is the directory; empty means /run/taskapi/users. Its parent is made if it is missing.
	Dir string
}

func (r Registry) dir() string { return cmp.Or(r.Dir, "/run/taskapi/users") }

// open makes the directory if it is missing, makes sure that it is ours, and locks it.
func (r Registry) open() (*privatefile.Lock, error) {
	if err := safedir.MakePassable(filepath.Dir(r.dir())); err != nil {
		return nil, err
	}
	if _, err := safedir.Trust(filepath.Dir(r.dir())); err != nil {
		return nil, err
	}
	if err := privatefile.EnsureDir(r.dir()); err != nil {
		return nil, err
	}
	return privatefile.Acquire(filepath.Join(r.dir(), "lock"))
}

// Take takes a group, and a user for each task, for the allocation in dir, and returns its list. The allocation keeps
// the IDs that it has in the list has, unless another allocation got them after a reboot. If none of its tasks runs, it
// also loses IDs that anybody else has now. IDs that it had taken before and that are not in has are released. Take
// does not rewrite correct files. If it fails, it has taken nothing.
func (r Registry) Take(dir string, has List, runs bool, tasks []string, in interfaces.IDRange) (_ List, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("take numbers of users from %d to %d: %w", in.From, in.To, err)
		}
	}()
	if !mapped("/proc/self/uid_map", in) || !mapped("/proc/self/gid_map", in) {
		return List{}, ErrUnmapped
	}
	lock, err := r.open()
	if err != nil {
		return List{}, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	p, err := r.read(dir)
	if err != nil {
		return List{}, err
	}
	p.in = in
	list := List{Group: has.Group, Tasks: map[string]uint32{}}
	if !p.mine(list.Group, runs) {
		if list.Group, err = p.next(); err != nil {
			return List{}, err
		}
	}
	for task, number := range has.Tasks { // also for a task of an earlier version of the job, whose files still exist
		if p.mine(number, runs) {
			list.Tasks[task] = number
		}
	}
	for _, task := range tasks {
		if list.Tasks[task] == 0 {
			if list.Tasks[task], err = p.next(); err != nil {
				return List{}, err
			}
		}
	}
	return list, p.write(list)
}

// Release releases the IDs of the allocation in dir, except those that a process still has.
func (r Registry) Release(dir string) (err error) {
	lock, err := r.open()
	if err != nil {
		return fmt.Errorf("give numbers of users back: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	p, err := r.read(dir)
	if err != nil {
		return fmt.Errorf("give numbers of users back: %w", err)
	}
	for number, owner := range p.saved {
		if owner == dir && !p.busy[number] {
			err = errors.Join(err, os.Remove(p.file(number)))
		}
	}
	return err
}

// pool is the registry, locked, for one allocation.
type pool struct {
	dir   string // of the registry
	owner string // the allocation's directory
	in    interfaces.IDRange
	taken map[uint32]string // IDs, with the directory of the allocation that has each
	saved map[uint32]string // taken, as the registry has it
	busy  map[uint32]bool   // IDs that a process has
}

func (r Registry) read(owner string) (*pool, error) {
	p := &pool{dir: r.dir(), owner: owner, taken: map[uint32]string{}}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		number, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		by, _, err := privatefile.Read(filepath.Join(p.dir, e.Name()), maxList)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		p.taken[uint32(number)] = string(by)
	}
	p.saved = maps.Clone(p.taken)
	p.takeSticky()
	p.busy, err = inUse()
	return p, err
}

// stickyDir is where an allocation's list is while it moves to another allocation. See package allocdir.
const stickyDir = ".sticky"

// takeSticky marks the IDs of sticky lists beside the owner's directory as taken. The registry may have them for the
// allocation that had the list before, or has lost them at a reboot.
func (p *pool) takeSticky() {
	all := filepath.Dir(p.owner)
	entries, _ := os.ReadDir(all) // the owner's list counts in any case
	for _, e := range entries {
		dir := filepath.Join(all, e.Name())
		for _, at := range []string{dir, filepath.Join(dir, stickyDir)} {
			list, err := Load(at)
			if err != nil || !list.Sticky {
				continue
			}
			for _, number := range append(slices.Collect(maps.Values(list.Tasks)), list.Group) {
				if by, ok := p.taken[number]; !ok || filepath.Dir(by) == all {
					p.taken[number] = dir
				}
			}
		}
	}
}

func (p *pool) file(number uint32) string {
	return filepath.Join(p.dir, strconv.FormatUint(uint64(number), 10))
}

// mine takes an ID that the allocation has had, unless another allocation has it now. If none of its tasks runs,
// anybody else's use prevents that, too.
func (p *pool) mine(number uint32, runs bool) bool {
	had := p.saved[number] != "" && p.taken[number] == p.owner
	if number == 0 || p.others(number, runs) || !had && !runs && (p.busy[number] || known(number)) {
		return false
	}
	p.taken[number] = p.owner
	return true
}

// others reports whether the ID belongs to another allocation, which has it, has left a process with it, or may resume.
// With moved, a process can only be this allocation's own task, which has run since before its directory was moved
// here.
func (p *pool) others(number uint32, moved bool) bool {
	by, ok := p.taken[number]
	if !ok || by == p.owner {
		return false
	}
	there, err := os.Lstat(by)
	own, _ := os.Lstat(p.owner)
	gone := errors.Is(err, fs.ErrNotExist) || os.SameFile(there, own) // it may have left a link where it was
	return p.busy[number] && !moved || !gone
}

// next takes an ID that nobody has. Different allocations begin their search at different IDs, so that an ID is not
// soon used again.
func (p *pool) next() (uint32, error) {
	count := uint64(p.in.To) - uint64(p.in.From) + 1
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(p.owner)) // never fails
	first := uint64(hash.Sum32()) % count
	for i := range count {
		number := p.in.From + uint32((first+i)%count)
		if by, ok := p.taken[number]; ok && by == p.owner || p.busy[number] || p.others(number, false) ||
			known(number) {
			continue
		}
		p.taken[number] = p.owner
		return number, nil
	}
	return 0, fmt.Errorf("%w: give a larger range, or end allocations that you don't need, and remove sticky data, "+
		"which keep theirs, with 'taskapi gc --sticky'", ErrNone)
}

// write saves the allocation's list in the registry.
func (p *pool) write(list List) error {
	has := map[uint32]bool{}
	for _, number := range list.Tasks {
		has[number] = true
	}
	if list.Group != 0 {
		has[list.Group] = true
	}
	for number := range has {
		if p.saved[number] == p.owner { // a full disk does not matter then
			continue
		}
		if err := privatefile.Write(p.file(number), []byte(p.owner)); err != nil {
			return errors.Join(err, p.undo(has))
		}
	}
	var errs []error
	for number, by := range p.saved {
		if by == p.owner && !has[number] && !p.busy[number] {
			errs = append(errs, os.Remove(p.file(number)))
		}
	}
	return errors.Join(errs...)
}

// undo releases the IDs that have just been taken.
func (p *pool) undo(has map[uint32]bool) error {
	var errs []error
	for number := range has {
		if p.saved[number] == p.owner {
			continue
		}
		if err := os.Remove(p.file(number)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// known reports whether the user or the group database has the number, or can't say.
func known(number uint32) bool {
	text := strconv.FormatUint(uint64(number), 10)
	_, userErr := user.LookupId(text)
	_, groupErr := user.LookupGroupId(text)
	_, noUser := errors.AsType[user.UnknownUserIdError](userErr)
	_, noGroup := errors.AsType[user.UnknownGroupIdError](groupErr)
	return !noUser || !noGroup
}

// inUse returns the users and groups of all processes.
func inUse() (map[uint32]bool, error) {
	pids, err := proc.PIDs()
	if err != nil {
		return nil, err
	}
	used := map[uint32]bool{}
	for _, pid := range pids {
		for key, ids := range proc.Values(filepath.Join("/proc", strconv.Itoa(pid), "status")) {
			if key != "Uid" && key != "Gid" && key != "Groups" {
				continue
			}
			for id := range strings.FieldsSeq(ids) {
				if number, err := strconv.ParseUint(id, 10, 32); err == nil {
					used[uint32(number)] = true
				}
			}
		}
	}
	return used, nil
}

// mapped reports whether a table of this program's user namespace, /proc/self/uid_map or gid_map, has all numbers of
// the range.
func mapped(table string, in interfaces.IDRange) bool {
	text, err := os.ReadFile(table)
	if err != nil {
		return true // the first start will show it
	}
	for line := range strings.Lines(string(text)) {
		var first, outside, count uint64
		if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil && first <= uint64(in.From) &&
			uint64(in.To) < first+count {
			return true
		}
	}
	return false
}

package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
)

// What Repair may say besides the errors of opening.
var (
	// ErrWhole: there is nothing to repair.
	ErrWhole = errors.New("state is not damaged")
	// ErrLost: of no allocation in the file both the allocation and its job can be read.
	ErrLost = errors.New("state can't be repaired")
)

// Held is what a file holds, as far as it can be read.
type Held struct {
	Version  string                       // of the taskapi that wrote last; empty when that can't be read
	Allocs   map[string]*interfaces.Saved // by ID. Without what can't be read: Alloc may be nil
	Problems []error                      // what is wrong with the file; none when it is whole
	Earlier  []string                     // values of which only an earlier version, by all that can be known, is left
}

// Inspect reads a file, damaged or not, also while another process writes it, and changes nothing. Errors: ErrNotFound, ErrNewer,
// ErrOlder, ErrFile.
func Inspect(path string) (*Held, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", path, ErrNotFound)
	}
	if err != nil {
		return nil, fileError(path, err)
	}
	defer file.Close()
	data, problems, err := snapshot(file)
	switch {
	case err != nil:
		return nil, fileError(path, err)
	case len(data) == 0:
		return nil, fmt.Errorf("%s: %w", path, ErrNotFound)
	}
	c, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	c.problems = append(problems, c.problems...)
	held := &Held{Version: c.version, Allocs: map[string]*interfaces.Saved{}, Earlier: c.rescue(data)}
	for id, set := range c.allocs {
		saved, more := compose(set)
		held.Allocs[id] = saved
		c.problems = append(c.problems, more...)
	}
	held.Problems = c.problems
	return held, nil
}

// snapshotTries bounds how often a file is read again that has been written meanwhile. A read takes a tenth of a write, which waits for
// the disk.
const snapshotTries = 50

// statReader is what snapshot needs of an *os.File.
type statReader interface {
	io.ReaderAt
	Stat() (fs.FileInfo, error)
}

// snapshot copies a file that may be written at the same time. The pages of a transaction stay as they are until the one after the next
// begins, so that a copy is good when no transaction has ended while it was made.
func snapshot(file statReader) (data []byte, problems []error, err error) {
	for range snapshotTries {
		info, err := file.Stat()
		if err != nil {
			return nil, nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, nil, errors.New("it is not a file")
		}
		data, problems = readAll(file, info.Size())
		before, ok := newestMeta(data)
		if !ok {
			return data, problems, nil
		}
		head := make([]byte, 2*before.pageSize)
		n, err := file.ReadAt(head, 0)
		if after, ok := newestMeta(head[:n]); ok && after == before || err != nil && !errors.Is(err, io.EOF) {
			return data, problems, nil
		}
	}
	return data, append(problems, errors.New("the file is written too often to be copied")), nil
}

// rescue adds to what a damaged file's tree gives the values that lie elsewhere in it, of each the latest version: bbolt writes a change
// beside what was there before. It names what it has added.
func (c *contents) rescue(data []byte) []string {
	if len(c.problems) == 0 {
		return nil
	}
	latest := map[slot]frame{}
	for at := 0; ; {
		i := bytes.Index(data[at:], []byte(frameMagic))
		if i < 0 {
			break
		}
		at += i
		f, size, ok := decodeFrame(data[at:])
		if !ok {
			at++
			continue
		}
		at += size
		if old, ok := latest[f.slot]; !ok || f.txid >= old.txid {
			latest[f.slot] = f
		}
	}
	var added []string
	for s, f := range latest {
		if _, ok := c.allocs[s.id][s.key]; !ok {
			c.set(s, f.body)
			added = append(added, s.describe())
		}
	}
	slices.Sort(added)
	return added
}

// describe names a value for people.
func (s slot) describe() string {
	what := s.key
	if name, ok := strings.CutPrefix(s.key, taskKey); ok {
		what = fmt.Sprintf("task %q", name)
	}
	return fmt.Sprintf("allocation %s: %s", s.id, what)
}

// Repaired is what a repair has done.
type Repaired struct {
	KeptAs   string   // where the damaged file is now
	Allocs   []string // the IDs of those that the new file has
	Problems []error  // what was wrong
	Earlier  []string // values of which only an earlier version, by all that can be known, was left
	Lost     []string // what could not be read at all
}

// Repair puts a new file, of what can still be read, in the place of a damaged one, which it keeps beside it under a name with the time.
// version is this taskapi's. Errors: ErrInUse, ErrNotFound, ErrNewer, ErrOlder, ErrFile, ErrWhole, ErrLost. After an error the file is as
// it was.
func Repair(path, version string, now time.Time) (*Repaired, error) {
	file, c, data, err := lockAndLoad(path, os.O_RDWR, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if len(c.problems) == 0 {
		return nil, fmt.Errorf("%s: %w", path, ErrWhole)
	}
	r := &Repaired{Problems: c.problems, Earlier: c.rescue(data), KeptAs: path + ".damaged-" + now.UTC().Format("20060102T150405Z")}
	set := r.keep(c)
	if len(set) == 0 {
		return nil, fmt.Errorf("%s: %w: %s", path, ErrLost, strings.Join(append(r.Lost, "no job can be read"), "; "))
	}
	if err := os.Link(path, r.KeptAs); err != nil {
		return nil, fileError(path, err)
	}
	if err := replace(path, version, set); err != nil {
		os.Remove(r.KeptAs)
		return nil, fileError(path, err)
	}
	return r, nil
}

// keep gives the values of those allocations that somebody could go on with, and notes what is lost.
func (r *Repaired) keep(c *contents) values {
	set := values{}
	for _, id := range slices.Sorted(maps.Keys(c.allocs)) {
		saved, problems := compose(c.allocs[id])
		for _, p := range problems {
			r.Lost = append(r.Lost, fmt.Sprintf("allocation %s: %v", id, p))
		}
		if saved.Alloc == nil || saved.Alloc.Job == nil || len(problems) > 0 {
			r.Lost = append(r.Lost, fmt.Sprintf("allocation %s: itself, or its job", id))
			continue
		}
		r.Allocs = append(r.Allocs, id)
		for _, name := range tasksOf(saved.Alloc) {
			if _, ok := saved.Tasks[name]; !ok {
				r.Lost = append(r.Lost, slot{id, taskKey + name}.describe())
			}
		}
		for key, body := range c.allocs[id] {
			set[slot{id, key}] = body
		}
	}
	return set
}

// tasksOf are the names of the tasks that the allocation's job gives it.
func tasksOf(alloc *api.Allocation) []string {
	var names []string
	for _, group := range alloc.Job.TaskGroups {
		if group.Name == nil || *group.Name != alloc.TaskGroup {
			continue
		}
		for _, task := range group.Tasks {
			names = append(names, task.Name)
		}
	}
	return names
}

package state

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/logfile"
)

// The errors of Repair besides those of opening.
var (
	// ErrUndamaged: there is nothing to repair.
	ErrUndamaged = errors.New("state is not damaged")
	// ErrLost: the allocation, or its job, can't be read.
	ErrLost = errors.New("state can't be repaired")
)

// Dump is the content of a file, as far as it can be read.
type Dump struct {
	Version  string            // of the taskapi that wrote last; empty when that can't be read
	Saved    *interfaces.Saved // without what can't be read: Alloc may be nil
	Problems []error           // what is wrong with the file; none when it is whole
	Stale    []string          // values of which a later version may have been damaged
}

// Inspect reads a file, damaged or not, also while another process writes it, and changes nothing. Errors: ErrNotFound,
// ErrNewer, ErrOlder, ErrFile.
func Inspect(path string) (*Dump, error) {
	c, err := inspect(path)
	if err != nil {
		return nil, err
	}
	saved, problems := compose(c.values)
	return &Dump{c.version, saved, append(c.problems, problems...), c.staleValues()}, nil
}

// Ended reports whether a file that is whole says that its allocation has ended. It decodes no other value.
func Ended(path string) bool {
	if over, isWhole := isOver(path); isWhole {
		return over
	}
	c, err := inspect(path)
	return err == nil && len(c.problems) == 0 && string(c.values[overKey]) == "true"
}

// scanners are reused: a start looks at the files of all allocations that have ended.
var scanners = sync.Pool{New: func() any { return new(logfile.Scanner) }}

// isOver is Ended for a file of which nothing is damaged, nothing is left by a crash and nothing is written just now.
// It keeps none of the file in memory.
func isOver(path string) (over, isWhole bool) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, false
	}
	defer file.Close()
	scan := scanners.Get().(*logfile.Scanner)
	defer scanners.Put(scan)
	var head [logfile.HeaderSize]byte
	if _, err := file.ReadAt(head[:], 0); err != nil {
		return false, false
	}
	end, _, err := readHeader(head[:])
	if info, statErr := file.Stat(); err != nil || statErr != nil || info.Size() != end || end > maxFile {
		return false, false
	}
	scan.Reset(file, logfile.HeaderSize, end)
	for last := uint64(0); ; {
		txid, err := scan.Batch(func(r logfile.Record, _ logfile.Span) error {
			if r.Key == overKey {
				over = string(r.Body) == "true"
			}
			return nil
		})
		if err != nil || txid <= last {
			return over, errors.Is(err, io.EOF)
		}
		last = txid
	}
}

func inspect(path string) (*contents, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", path, ErrNotFound)
	}
	if err != nil {
		return nil, fileError(path, err)
	}
	defer file.Close()
	return load(file, path)
}

// staleValues names, for people, the values that may not be the latest.
func (c *contents) staleValues() []string {
	var names []string
	for _, key := range slices.Sorted(maps.Keys(c.stale)) {
		if _, ok := c.values[key]; ok {
			names = append(names, describe(key))
		}
	}
	return names
}

// describe names a value for people.
func describe(key string) string {
	if name, ok := strings.CutPrefix(key, taskKey); ok {
		return fmt.Sprintf("task %q", name)
	}
	return key
}

// Repaired reports what a repair has done.
type Repaired struct {
	KeptAs   string   // where the damaged file is now
	Problems []error  // what was wrong
	Stale    []string // values of which a later version may have been damaged
	Lost     []string // what could not be read at all
}

// Repair replaces a damaged file by a new one, with all that can still be read. It keeps the damaged file beside it,
// under a name with the time. version is that of this taskapi. Errors: ErrInUse, ErrNotFound, ErrNewer, ErrOlder,
// ErrFile, ErrUndamaged, ErrLost. After an error the file is as it was.
func Repair(path, version string, now time.Time) (*Repaired, error) {
	file, err := lock(path, os.O_RDWR, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	db := &DB{path: path, version: version, file: file}
	defer db.Close()
	c, err := load(file, path)
	if err != nil {
		return nil, err
	}
	if len(c.problems) == 0 {
		return nil, fmt.Errorf("%s: %w", path, ErrUndamaged)
	}
	kept := path + ".damaged-" + now.UTC().Format("20060102T150405Z")
	r := &Repaired{KeptAs: kept, Problems: c.problems, Stale: c.staleValues()}
	if r.Lost, err = c.lost(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := os.Link(path, r.KeptAs); err != nil {
		return nil, fileError(path, err)
	}
	db.txid = c.txid
	if err := db.replace(c.values); err != nil {
		os.Remove(r.KeptAs)
		return nil, err
	}
	return r, nil
}

// lost names the values that can't be read. Errors: ErrLost when the allocation can't be resumed without them.
func (c *contents) lost() (names []string, err error) {
	saved, problems := compose(c.values)
	switch {
	case len(problems) > 0:
		return nil, fmt.Errorf("%w: %w", ErrLost, errors.Join(problems...))
	case saved.Alloc == nil:
		return nil, fmt.Errorf("%w: the allocation can't be read", ErrLost)
	case saved.Alloc.Job == nil:
		return nil, fmt.Errorf("%w: its job can't be read", ErrLost)
	}
	for _, name := range tasksOf(saved.Alloc) {
		if _, ok := saved.Tasks[name]; !ok {
			names = append(names, describe(taskKey+name))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.stale)) {
		if _, ok := c.values[key]; !ok && key != "" && !slices.Contains(names, describe(key)) {
			names = append(names, describe(key))
		}
	}
	return names, nil
}

// tasksOf returns the names of the tasks that the allocation's job gives it.
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

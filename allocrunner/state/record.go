package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// The keys of an allocation. Each holds one value as JSON.
const (
	allocKey  = "alloc"  // api.Allocation without Job and TaskStates
	jobKey    = "job"    // api.Job, in a bucket of its own
	checksKey = "checks" // api.AllocCheckStatuses
	overKey   = "over"   // true
	killKey   = "kill"   // time.Time of Change.KillAfter
	lifeKey   = "life"   // string
	taskKey   = "task/"  // and the task's name: interfaces.SavedTask
)

// slot names a value: an allocation's ID, and one of the keys above.
type slot struct{ id, key string }

// records are values as JSON, by their keys. They are an allocation's.
type records map[string][]byte

// maxName bounds an allocation's ID together with a key: a frame has 16 bits for its length, and bbolt 32 KB for a key.
const maxName = 4096

func (s slot) check() error {
	switch {
	case s.id == "" || strings.ContainsRune(s.id, 0):
		return fmt.Errorf("allocation ID %q is empty or has a NUL in it", s.id)
	case len(s.name()) > maxName:
		return fmt.Errorf("allocation ID and task name have %d bytes together, the most is %d", len(s.name()), maxName)
	}
	return nil
}

// name is the slot in a frame.
func (s slot) name() string { return s.id + "\x00" + s.key }

// A value is kept in a frame, so that a flipped bit in it shows, and so that it can be found in a file whose structure is lost:
//
//	magic    4 bytes, the first of which is in no JSON
//	sum      4 bytes, CRC-32C of all that follows
//	name     2 bytes
//	body     4 bytes, these two the lengths of what comes last
//	txid     8 bytes, the transaction that wrote it: of two that have the same name, the higher one is the later one
//	the name, the body
//
// Numbers are big-endian.
const (
	frameMagic  = "\xf5TAS"
	frameHeader = 22
	frameSummed = 8 // where what the sum is of begins
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame is a value with what its frame says of it.
type frame struct {
	slot slot
	txid uint64
	body []byte
}

func (f frame) encode() []byte {
	name := f.slot.name()
	b := make([]byte, 0, frameHeader+len(name)+len(f.body))
	b = append(b, frameMagic...)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.body)))
	b = binary.BigEndian.AppendUint64(b, f.txid)
	b = append(append(b, name...), f.body...)
	binary.BigEndian.PutUint32(b[len(frameMagic):], crc32.Checksum(b[frameSummed:], castagnoli))
	return b
}

// decodeFrame reads the frame that b begins with, and gives its length.
func decodeFrame(b []byte) (f frame, size int, ok bool) {
	if len(b) < frameHeader || string(b[:len(frameMagic)]) != frameMagic {
		return frame{}, 0, false
	}
	nameSize, bodySize := uint64(binary.BigEndian.Uint16(b[8:])), uint64(binary.BigEndian.Uint32(b[10:]))
	end := frameHeader + nameSize + bodySize
	if end > uint64(len(b)) || binary.BigEndian.Uint32(b[len(frameMagic):]) != crc32.Checksum(b[frameSummed:end], castagnoli) {
		return frame{}, 0, false
	}
	id, key, ok := strings.Cut(string(b[frameHeader:frameHeader+nameSize]), "\x00")
	return frame{slot{id, key}, binary.BigEndian.Uint64(b[14:]), b[frameHeader+nameSize : end]}, int(end), ok
}

// unwrap gives the body of the value that is kept in a slot.
func unwrap(s slot, value []byte) ([]byte, error) {
	f, size, ok := decodeFrame(value)
	switch {
	case !ok || size != len(value):
		return nil, fmt.Errorf("the checksum of %q is wrong", s.key)
	case f.slot != s:
		return nil, fmt.Errorf("%q is kept under the name %q", f.slot.key, s.key)
	}
	return f.body, nil
}

// values are as JSON, by where they belong.
type values map[slot][]byte

// add encodes a value. Errors: those of JSON, and of a name that can't be kept.
func (v values) add(id, key string, value any) error {
	s := slot{id, key}
	if err := s.check(); err != nil {
		return fmt.Errorf("put allocation: %w", err)
	}
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s of allocation %s: %w", key, id, err)
	}
	v[s] = body
	return nil
}

// addChange encodes all of a change but the job.
func (v values) addChange(c interfaces.Change) error {
	var errs []error
	if c.Alloc != nil {
		if c.Alloc.ID != c.ID {
			return fmt.Errorf("put allocation %q: the change has allocation %q", c.ID, c.Alloc.ID)
		}
		alloc := *c.Alloc
		alloc.Job, alloc.TaskStates = nil, nil
		errs = append(errs, v.add(c.ID, allocKey, &alloc))
	}
	if c.Checks != nil {
		errs = append(errs, v.add(c.ID, checksKey, c.Checks))
	}
	if c.Over {
		errs = append(errs, v.add(c.ID, overKey, true))
	}
	if !c.KillAfter.IsZero() {
		errs = append(errs, v.add(c.ID, killKey, c.KillAfter))
	}
	if c.Life != "" {
		errs = append(errs, v.add(c.ID, lifeKey, c.Life))
	}
	for name, task := range c.Tasks {
		errs = append(errs, v.add(c.ID, taskKey+name, task))
	}
	return errors.Join(errs...)
}

// compose puts an allocation together. What can't be read is left out, and noted.
func compose(set records) (*interfaces.Saved, []error) {
	saved := &interfaces.Saved{}
	var problems []error
	read := func(key string, into any) bool {
		body, ok := set[key]
		if !ok {
			return false
		}
		err := json.Unmarshal(body, into)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", key, err))
		}
		return err == nil
	}
	read(allocKey, &saved.Alloc)
	read(checksKey, &saved.Checks)
	read(overKey, &saved.Over)
	read(killKey, &saved.KillAfter)
	read(lifeKey, &saved.Life)
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if name, ok := strings.CutPrefix(key, taskKey); ok {
			var task interfaces.SavedTask
			if !read(key, &task) {
				continue
			}
			if saved.Tasks == nil {
				saved.Tasks = map[string]interfaces.SavedTask{}
			}
			saved.Tasks[name] = task
		}
	}
	if saved.Alloc != nil {
		read(jobKey, &saved.Alloc.Job)
		withTaskStates(saved)
	}
	return saved, problems
}

// withTaskStates gives the allocation the states in its tasks' records.
func withTaskStates(saved *interfaces.Saved) {
	for name, task := range saved.Tasks {
		if task.State == nil {
			continue
		}
		if saved.Alloc.TaskStates == nil {
			saved.Alloc.TaskStates = map[string]*api.TaskState{}
		}
		saved.Alloc.TaskStates[name] = task.State
	}
}

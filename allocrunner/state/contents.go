package state

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// format is the layout of the file. It is raised when an older taskapi could not read what a newer one writes, be it one more bucket.
// What says so is to be found in every format: metaBucket with formatKey, versionKey and sumKey.
const format = 2

var (
	metaBucket = []byte("meta")
	formatKey  = []byte("format")
	versionKey = []byte("version") // of the taskapi that wrote last
	sumKey     = []byte("sum")     // of these two
)

// allocPrefix and an allocation's ID are the name of its bucket. The job has a bucket within that: bbolt writes whole pages, and a small
// value next to the job would take the job along each time.
const allocPrefix = "alloc/"

var jobBucket = []byte(jobKey)

// contents are what a file holds.
type contents struct {
	format, version string
	allocs          map[string]records // by the allocation's ID
	problems        []error            // what is wrong with the file
}

// parse reads a file. Errors: ErrNewer, ErrOlder. Damage is no error here: it is noted, and the rest is read.
func parse(data []byte) (*contents, error) {
	t := readTree(data)
	c := &contents{allocs: map[string]records{}, problems: t.problems}
	if err := c.readFormat(t.elements); err != nil {
		return nil, err
	}
	for _, e := range t.elements {
		if e.bucket == string(metaBucket) {
			continue
		}
		id, ok := strings.CutPrefix(e.bucket, allocPrefix)
		if !ok {
			c.problems = append(c.problems, fmt.Errorf("there is a bucket %q, which this format does not have", e.bucket))
			continue
		}
		key := e.key
		if key == jobKey+"\x00"+jobKey {
			key = jobKey
		}
		body, err := unwrap(slot{id, key}, e.value)
		if err != nil {
			c.problems = append(c.problems, fmt.Errorf("allocation %s: %w", id, err))
			continue
		}
		c.set(slot{id, key}, body)
	}
	return c, nil
}

func (c *contents) set(s slot, body []byte) {
	if c.allocs[s.id] == nil {
		c.allocs[s.id] = records{}
	}
	c.allocs[s.id][s.key] = body
}

// readFormat finds out which format the file has and refuses those that this version does not read.
func (c *contents) readFormat(elements []element) error {
	at := map[string]string{}
	for _, e := range elements {
		if e.bucket == string(metaBucket) {
			at[e.key] = string(e.value)
		}
	}
	c.format, c.version = at[string(formatKey)], at[string(versionKey)]
	if c.format == "1" && at[string(sumKey)] == "" {
		return fmt.Errorf("%w: it has format 1, which this one does not read; stop it with the taskapi that started it, then give another --alloc-id",
			ErrOlder)
	}
	number, err := strconv.Atoi(c.format)
	switch {
	case len(at) == 0 && len(c.problems) > 0: // which have said it
	case err != nil, at[string(sumKey)] != metaSum(c.format, c.version):
		c.problems = append(c.problems, errors.New("its format can't be read"))
	case number > format:
		return fmt.Errorf("%w: taskapi %s wrote it in format %d, this one reads %d; use that taskapi or a newer one", ErrNewer, c.version, number, format)
	case number < format:
		c.problems = append(c.problems, fmt.Errorf("there is no format %d", number))
	}
	return nil
}

func metaSum(format, version string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(format+"\x00"+version), castagnoli))
}

// writeMeta writes the format, and which version of taskapi writes. It reports whether that is news.
func writeMeta(tx *bolt.Tx, version string) (bool, error) {
	bucket, err := tx.CreateBucketIfNotExists(metaBucket)
	if err != nil {
		return false, err
	}
	if old := bucket.Get(versionKey); old != nil && string(old) == version {
		return false, nil
	}
	number := strconv.Itoa(format)
	return true, errors.Join(
		bucket.Put(formatKey, []byte(number)),
		bucket.Put(versionKey, []byte(version)),
		bucket.Put(sumKey, []byte(metaSum(number, version))),
	)
}

// writeValues writes what differs from what the file has. It reports whether anything does.
func writeValues(tx *bolt.Tx, set values) (changed bool, err error) {
	for s, body := range set {
		bucket, err := tx.CreateBucketIfNotExists([]byte(allocPrefix + s.id))
		if err == nil && s.key == jobKey {
			bucket, err = bucket.CreateBucketIfNotExists(jobBucket)
		}
		if err != nil {
			return false, fmt.Errorf("allocation %s: %w", s.id, err)
		}
		if old, err := unwrap(s, bucket.Get([]byte(s.key))); err == nil && string(old) == string(body) {
			continue
		}
		if err := bucket.Put([]byte(s.key), frame{s, uint64(tx.ID()), body}.encode()); err != nil {
			return false, fmt.Errorf("allocation %s: %w", s.id, err)
		}
		changed = true
	}
	return changed, nil
}

// readValues copies what the bucket of an allocation has. What can't be read is noted.
func readValues(tx *bolt.Tx, id string) (found records, problems []error) {
	bucket := tx.Bucket([]byte(allocPrefix + id))
	if bucket == nil {
		return nil, nil
	}
	found = records{}
	add := func(key, value []byte) error {
		if value == nil { // a bucket
			return nil
		}
		body, err := unwrap(slot{id, string(key)}, value)
		if err != nil {
			problems = append(problems, err)
			return nil
		}
		found[string(key)] = bytes.Clone(body)
		return nil
	}
	if job := bucket.Bucket(jobBucket); job != nil {
		_ = job.ForEach(add) // add never fails
	}
	_ = bucket.ForEach(add)
	return found, problems
}

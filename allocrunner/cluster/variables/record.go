package variables

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
)

// recordVersion is the version of a record: a line of JSON, the header, and then the sealed items.
const recordVersion = 1

// maxHeader is more than a header has: the ID of a lock has at most maxLockID bytes, and JSON writes a byte as six at
// most.
const maxHeader = 1 << 10

// header is a variable's metadata. Its indexes are the entry's own.
type header struct {
	Version    int   `json:"version"`
	CreateTime int64 `json:"create_time"` // nanoseconds since the Unix epoch
	ModifyTime int64 `json:"modify_time"`
	Lock       *lock `json:"lock,omitempty"`

	// Writer names the job of the task that wrote the variable, by writerOf: the variable counts against its share.
	// Empty for the operator.
	Writer string `json:"writer,omitempty"`
}

// lock is a lock on a variable. Its lease says how long it is held.
type lock struct {
	ID    string        `json:"id"`
	TTL   time.Duration `json:"ttl_ns"`
	Delay time.Duration `json:"delay_ns"`
}

// record is a variable as it is stored.
type record struct {
	header
	sealed []byte
}

func (r record) encode() []byte {
	line, _ := json.Marshal(r.header) // strings and numbers can always be encoded
	return append(append(line, '\n'), r.sealed...)
}

var errNewer = errors.New("it was written by a newer taskapi")

// decodeRecord reads a stored variable. With an error it returns as much as could be read.
func decodeRecord(value []byte) (record, error) {
	line, sealed, found := bytes.Cut(value, []byte("\n"))
	var r record
	if err := json.Unmarshal(line, &r.header); err != nil || !found {
		return record{}, errors.New("its header is damaged")
	}
	r.sealed = sealed
	if r.Version != recordVersion {
		return r, errNewer
	}
	return r, nil
}

// state is what was read of a place. Without an entry there is no variable.
type state struct {
	record
	at     place
	entry  cluster.Entry
	damage error // why the record can't be used
	index  uint64

	leased cluster.Entry // which has the lease
	lease  lease         // of the lock
	phase  phase         // of the lock; free without one
}

// newState reads the entry of a place.
func newState(at place, entry cluster.Entry) state {
	s := state{at: at, entry: entry}
	if s.exists() {
		s.record, s.damage = decodeRecord(entry.Value)
	}
	return s
}

func (s state) exists() bool { return s.entry.ModifyIndex != 0 }

// locked reports whether the variable's lock keeps out all but its holder.
func (s state) locked() bool { return s.phase != free }

// heldBy reports whether the lock is held and has this ID.
func (s state) heldBy(id string) bool { return s.locked() && s.Lock.ID == id }

// metadataOf returns a variable without its items.
func metadataOf(v *api.Variable) *api.VariableMetadata {
	m := v.Metadata()
	m.Lock = v.Lock // which the client leaves out
	return m
}

// variable returns the variable with these items.
func (s state) variable(items map[string]string) *api.Variable {
	v := &api.Variable{
		Namespace: s.at.namespace, Path: s.at.path,
		CreateIndex: s.entry.CreateIndex, ModifyIndex: s.entry.ModifyIndex,
		CreateTime: s.CreateTime, ModifyTime: s.ModifyTime, Items: items,
	}
	if s.locked() {
		v.Lock = &api.VariableLock{ID: s.Lock.ID, TTL: s.Lock.TTL.String(), LockDelay: s.Lock.Delay.String()}
	}
	return v
}

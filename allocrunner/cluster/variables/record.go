package variables

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
)

// recordVersion is of what is written here: a line of JSON, the header, and then the sealed items.
const recordVersion = 1

// maxHeader is more than a header has: the ID of a lock has maxLockID bytes, each of which JSON writes as six at most.
const maxHeader = 1 << 10

// header is what is known of a variable beside its items, and its indexes, which are the entry's.
type header struct {
	Version    int   `json:"version"`
	CreateTime int64 `json:"create_time"` // nanoseconds since the Unix epoch
	ModifyTime int64 `json:"modify_time"`
	Lock       *lock `json:"lock,omitempty"`

	// Writer is the job whose share the variable counts against, as writerOf names it: that of the task that wrote it.
	// Empty for the operator.
	Writer string `json:"writer,omitempty"`
}

// lock is a lock on a variable. Until when it is held says its lease.
type lock struct {
	ID    string        `json:"id"`
	TTL   time.Duration `json:"ttl_ns"`
	Delay time.Duration `json:"delay_ns"`
}

func (l *lock) api() *api.VariableLock {
	if l == nil {
		return nil
	}
	return &api.VariableLock{ID: l.ID, TTL: l.TTL.String(), LockDelay: l.Delay.String()}
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

// decodeRecord reads a stored variable. Beside an error there is as much as could be read.
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

// decodeItems reads opened items.
func decodeItems(plain []byte) (map[string]string, error) {
	items := map[string]string{}
	if err := json.Unmarshal(plain, &items); err != nil {
		return nil, fmt.Errorf("its items are damaged: %w", err)
	}
	return items, nil
}

// state is what is at a place, as it was read. One without an entry is that of no variable.
type state struct {
	record
	at     place
	entry  cluster.Entry
	damage error // why the record can't be used
	index  uint64

	leased cluster.Entry // the lease of the lock
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

// withLease returns the state with its lock as it stands at a moment.
func (s state) withLease(leased cluster.Entry, now Moment) state {
	s.leased = leased
	if s.Lock != nil {
		s.phase = s.Lock.phase(decodeLease(leased.Value), now)
	}
	return s
}

// locked reports whether the variable's lock keeps others out than its holder.
func (s state) locked() bool { return s.phase != free }

// heldBy reports whether the lock is that of the ID.
func (s state) heldBy(id string) bool { return s.locked() && s.Lock.ID == id }

// metadata returns what is known of the variable beside its items.
func (s state) metadata() *api.VariableMetadata {
	m := &api.VariableMetadata{
		Namespace: s.at.namespace, Path: s.at.path,
		CreateIndex: s.entry.CreateIndex, ModifyIndex: s.entry.ModifyIndex, CreateTime: s.CreateTime, ModifyTime: s.ModifyTime,
	}
	if s.locked() {
		m.Lock = s.Lock.api()
	}
	return m
}

// variable returns the variable with the items; nil is none.
func (s state) variable(items map[string]string) *api.Variable {
	m := s.metadata()
	return &api.Variable{
		Namespace: m.Namespace, Path: m.Path, CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
		CreateTime: m.CreateTime, ModifyTime: m.ModifyTime, Lock: m.Lock, Items: items,
	}
}

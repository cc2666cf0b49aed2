package state

import (
	"maps"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// version is what was put of an allocation last. Two put them, each in its own time: a runner, before it acts, and a buffer of updates,
// some time after. Which of them is the later one its ModifyIndex says.
type version struct {
	index  uint64
	job    *api.Job // nil: as before
	states bool     // with the states of tasks that have no record of their own
}

// under reports whether v is not to be written over another version: it is older, or it is the same and has less to say.
func (v version) under(other version) bool {
	return v.index < other.index || v.index == other.index && other.states && !v.states
}

// advanceLocked takes out of a set what is under what was put before, and notes the rest. A runner that begins anew, with lower indexes,
// does so with a file that was opened anew.
func (db *DB) advanceLocked(set values, given map[string]version) {
	for id, v := range given {
		last, known := db.versions[id]
		if known && v.under(last) {
			delete(set, slot{id, allocKey})
			delete(set, slot{id, jobKey})
			continue
		}
		if v.job == nil {
			v.job = last.job
		}
		db.versions[id] = v
	}
	for s := range set {
		db.noteTaskLocked(s)
	}
}

// noteTaskLocked remembers which tasks have records of their own.
func (db *DB) noteTaskLocked(s slot) {
	if strings.HasPrefix(s.key, taskKey) {
		db.recorded[s] = true
	}
}

// unrecorded is the allocation without the states of tasks that have records of their own: they would be kept twice.
func (db *DB) unrecorded(alloc *api.Allocation) *api.Allocation {
	db.mu.Lock()
	defer db.mu.Unlock()
	rest := *alloc
	rest.TaskStates = maps.Clone(alloc.TaskStates)
	maps.DeleteFunc(rest.TaskStates, func(task string, _ *api.TaskState) bool { return db.recorded[slot{alloc.ID, taskKey + task}] })
	return &rest
}

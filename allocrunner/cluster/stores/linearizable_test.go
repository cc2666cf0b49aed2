package stores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
)

// event is one call of a client of a store, with its result.
type event struct {
	ID           int    // of the client
	Call, Return int64  // nanoseconds of CLOCK_MONOTONIC; Return is 0 before the end of the call
	Kind         string // get, set, cas, delete
	Key, Value   string
	If           uint64 // the ModifyIndex that cas requires
	Modify       uint64 // of the entry that get found; the index of a commit
	Index        uint64 // the store's
	Conflict     bool
	Uncertain    bool
	Err          string // a get, or a commit that is known not to have been made
}

func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// work uses a store as one of several clients, for a number of steps or until ctx ends. It emits each step before it
// begins the step, and again after it. No two steps write the same value.
func work(ctx context.Context, s cluster.Store, id, steps int, emit func(event)) {
	seen := map[string]uint64{}
	for n := 0; n < steps && ctx.Err() == nil; n++ {
		e := event{ID: id, Kind: []string{"get", "get", "set", "cas", "cas", "delete"}[rand.IntN(6)],
			Key: fmt.Sprintf("k/%d", rand.IntN(3))}
		if e.Kind == "set" || e.Kind == "cas" {
			e.Value, e.If = fmt.Sprintf("%d/%d", id, n), seen[e.Key]
		}
		e.Call = now()
		emit(e)
		e.do(ctx, s)
		e.Return = now()
		seen[e.Key] = e.Modify
		emit(e)
	}
}

func (e *event) do(ctx context.Context, s cluster.Store) {
	if e.Kind == "get" {
		entry, index, err := s.Get(ctx, e.Key)
		if err != nil {
			e.Err = err.Error()
		}
		e.Value, e.Modify, e.Index = string(entry.Value), entry.ModifyIndex, index
		return
	}
	txn := cluster.Txn{Then: []cluster.Operation{clustertest.Set(e.Key, e.Value)}}
	switch e.Kind {
	case "cas":
		txn.If = []cluster.Condition{{Key: e.Key, ModifyIndex: e.If}}
	case "delete":
		txn.Then[0] = clustertest.Delete(e.Key)
	}
	index, err := s.Commit(ctx, txn)
	conflict, lost := errors.AsType[*cluster.ConflictError](err)
	switch {
	case lost:
		e.Conflict, e.Modify = true, conflict.Entry.ModifyIndex
	case errors.Is(err, cluster.ErrUncertain):
		e.Uncertain = true
	case err != nil:
		e.Err = err.Error()
	default:
		e.Index, e.Modify = index, index
	}
	if e.Kind == "delete" {
		e.Modify = 0
	}
}

// register is the state of one key: its value, empty for none, and its ModifyIndex. The index is 0 while it is unknown,
// since the commit's caller was killed before it returned.
type register struct {
	value  string
	modify uint64
}

// step returns the register after an event, and whether the event is possible.
func (r register) step(e event) (bool, register) {
	unknown := r.value != "" && r.modify == 0
	switch e.Kind {
	case "get":
		if r.value != e.Value || !unknown && r.modify != e.Modify {
			return false, r
		}
		return true, register{e.Value, e.Modify}
	case "delete":
		return true, register{}
	case "cas":
		holds := !unknown && r.modify == e.If
		switch {
		case e.Return == 0 && !holds:
			return true, r
		case e.Conflict && unknown:
			return !holds, register{r.value, e.Modify}
		case e.Conflict:
			return !holds && r.modify == e.Modify, r
		case !holds:
			return false, r
		}
	}
	return e.Modify > r.modify || e.Return == 0, register{e.Value, e.Modify}
}

// model is a register for porcupine.
var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		ok, next := state.(register).step(input.(event))
		return ok, next
	},
}

// checkLinearizable requires that the events can have happened one after the other, each between its call and its
// return, and that the store's index only grows. An event without a return may have happened at any time after its
// call, or never.
func checkLinearizable(t testing.TB, events []event) {
	t.Helper()
	byKey := map[string][]porcupine.Operation{}
	var done []event
	for i, e := range events {
		switch {
		case e.Return == 0 && e.Kind == "get", e.Err != "":
			continue
		case e.Return == 0 || e.Uncertain:
			e.Return = 0
		default:
			done = append(done, e)
		}
		op := porcupine.Operation{ClientId: i, Input: e, Call: e.Call, Return: e.Return}
		if e.Return == 0 {
			op.Return = math.MaxInt64
		}
		byKey[e.Key] = append(byKey[e.Key], op)
	}
	for key, ops := range byKey {
		switch porcupine.CheckOperationsTimeout(model, ops, 2*time.Minute) {
		case porcupine.Illegal:
			t.Errorf("%s: %d operations that can't have happened one after the other", key, len(ops))
		case porcupine.Unknown:
			t.Errorf("%s: %d operations are too many to check", key, len(ops))
		}
	}
	checkIndexes(t, done)
}

// checkIndexes requires that no two commits share an index, and that an event which begins after another one has
// returned sees no lower index.
func checkIndexes(t testing.TB, events []event) {
	t.Helper()
	byReturn := slices.SortedFunc(slices.Values(events), func(a, b event) int {
		return cmp.Compare(a.Return, b.Return)
	})
	byCall := slices.SortedFunc(slices.Values(events), func(a, b event) int { return cmp.Compare(a.Call, b.Call) })
	committed := map[uint64]event{}
	var latest event
	for _, e := range byCall {
		for len(byReturn) > 0 && byReturn[0].Return < e.Call {
			if byReturn[0].Index > latest.Index {
				latest = byReturn[0]
			}
			byReturn = byReturn[1:]
		}
		if e.Conflict {
			continue
		}
		if e.Index < latest.Index {
			t.Errorf("%+v came after %+v", e, latest)
		}
		if e.Kind != "set" && e.Kind != "cas" { // a deletion of nothing returns the index of an earlier commit
			continue
		}
		if other, twice := committed[e.Index]; twice || e.Index == latest.Index {
			t.Errorf("%+v has the index of %+v %+v", e, other, latest)
		}
		committed[e.Index] = e
	}
}
